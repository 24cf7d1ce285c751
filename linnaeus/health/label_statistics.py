"""Find problems of the labels: other class frequencies in validation than in training, and validation results at chance level.

Without any information about a sample, the best prediction is the class frequencies of the training labels. The loss of this prediction is
the cross-entropy of the validation labels under these frequencies; its accuracy is the share of the most frequent class. This is the chance
level. A model does not become better than the chance level if the labels do not belong to the samples (shuffled labels), or if classes are
numbered differently in training and validation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from linnaeus.health.alarm import Alarm

# A model is at chance level if for every task the validation loss is at least NO_SKILL x the loss of the frequencies, and the accuracy at
# most NO_SKILL_ERRORS standard errors above the share of the most frequent class. In 250 updates on biota the ratio of losses was 0.60
# (order) to 0.87 (species) at half of the run, with shuffled labels 1.01 to 1.05. A slow run (head=marginal) had 0.98 to 1.01 at a quarter
# of the run and 0.77 to 0.92 at half of it.
NO_SKILL, NO_SKILL_ERRORS = 0.97, 2.0
RUINED = 10.0  # ratio of losses above which the model is ruined, not at chance level; see learning_rate and divergence
# Fractions of the run: two successive validations after the first raise the alarm, or one validation after the second.
NO_SKILL_FROM, NO_SKILL_AT_ONCE = 0.2, 0.5
# An alarm is raised for a distance of the frequencies above SHIFT and above OVER_CHANCE x mean + DEVIATIONS x standard deviation. Mean and
# standard deviation are those of the distance of two random samples from the same classes.
SHIFT, OVER_CHANCE, DEVIATIONS = 0.1, 2.0, 4.0


SHUFFLED = "shuffled_labels"


@dataclass(frozen=True)
class LabelStatistics:
    """Statistics of the labels of one task.

    loss: cross-entropy of the validation labels under the training frequencies, in nats. top1: fraction of validation labels that are the
    most frequent training class, 0 to 1. top1_error: standard error of `top1`. distance: total variation distance of the training and
    validation frequencies, 0 to 1: the fraction of validation labels that would have to change for equal frequencies. chance: the limit of
    `distance` above which an alarm is raised, at least `SHIFT`; two random samples from one distribution rarely exceed it."""

    loss: float
    top1: float
    top1_error: float
    distance: float
    chance: float

    @classmethod
    def of(cls, training: np.ndarray, validation: np.ndarray) -> LabelStatistics | None:
        """Return the statistics; None if one of the sets has no labels. training, validation: number of labels of each class, [C]. For the
        loss, 1 is added to each training number, so that no class has the probability 0."""
        n, m = float(training.sum()), float(validation.sum())
        if not n or not m:
            return None
        p, q, both = training / n, validation / m, (training + validation) / (n + m)
        loss = -float((q * np.log((training + 1) / (n + len(training)))).sum())
        top1 = float(q[int(training.argmax())])
        error = math.sqrt(max(top1 * (1 - top1), 1 / m) / m)
        variance = both * (1 - both) * (1 / n + 1 / m)  # of a difference of two frequencies
        mean, deviation = 0.5 * math.sqrt(2 / math.pi) * float(np.sqrt(variance).sum()), 0.5 * math.sqrt(float(variance.sum()))
        return cls(loss, top1, error, 0.5 * float(np.abs(p - q).sum()), max(SHIFT, OVER_CHANCE * mean + DEVIATIONS * deviation))


def label_statistics(counts: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, LabelStatistics]:
    """Return task -> statistics, for the tasks with labels in training and validation. counts: result of `Workload.label_counts`."""
    found = {task: LabelStatistics.of(*both) for task, both in counts.items()}
    return {task: statistics for task, statistics in found.items() if statistics is not None}


@dataclass(frozen=True)
class ValidationNumbers:
    """Results of a validation.

    step: `global_step`. fraction: fraction of the run that is done, 0 to 1. loss: loss over all tasks; None if only EMA weights were
    validated, because their loss cannot be compared with training losses. losses: task -> loss. top1: task -> accuracy. Tasks without a
    loss or an accuracy are missing."""

    step: int
    fraction: float = 0.0
    loss: float | None = None
    losses: Mapping[str, float] = field(default_factory=dict)
    top1: Mapping[str, float] = field(default_factory=dict)


def label_problems(tasks: Sequence[str], labels: Mapping[str, LabelStatistics], results: ValidationNumbers) -> Iterator[Alarm]:
    """Yield at most two alarms about the labels.

    `label_shift` names all tasks whose `distance` is above `chance`. Its text and numbers are about the task in which `distance` - `chance`
    is largest. `shuffled_labels` is raised from the fraction `NO_SKILL_FROM` of the run on, if every task is at chance level; it is not
    raised if a task has no statistics, or if the labels of every task are all of one class, so that there is nothing to learn.

    tasks: names of all tasks. labels: task -> statistics; tasks with unknown statistics are missing. results: results of the validation."""
    shifted = {task: own for task, own in labels.items() if own.distance > own.chance}
    if shifted:
        task = max(shifted, key=lambda name: shifted[name].distance - shifted[name].chance)
        distance, chance = shifted[task].distance, shifted[task].chance
        text = f"training and validation labels of {task} differ in frequency: {100 * distance:.0f} % would have to be of another class"
        yield Alarm("label_shift", results.step, f"{text}, by chance at most {100 * chance:.0f} %", None, tuple(shifted), distance, chance)
    learnable = any(own.loss > 0 for own in labels.values())
    if results.fraction >= NO_SKILL_FROM and learnable and all(_without_skill(labels.get(task), results, task) for task in tasks):
        loss, constant = results.losses[tasks[-1]], labels[tasks[-1]].loss
        text = f"the validation loss of {tasks[-1]} is {loss:.4g}, and the frequencies of the labels alone give {constant:.4g}"
        yield Alarm(SHUFFLED, results.step, f"{text}: nothing has been learned about the samples", None, (), loss, constant)


def _without_skill(labels: LabelStatistics | None, results: ValidationNumbers, task: str) -> bool:
    """Return True if the validation results of `task` are at chance level. labels: statistics of the task, None if unknown.

    Return False if `labels` is None, if the loss is missing, or if the loss is above `RUINED` x the loss of the training frequencies. A
    missing accuracy is not checked."""
    loss, top1 = results.losses.get(task), results.top1.get(task)
    if labels is None or loss is None or not NO_SKILL * labels.loss <= loss <= RUINED * labels.loss:
        return False
    return top1 is None or top1 <= labels.top1 + NO_SKILL_ERRORS * labels.top1_error
