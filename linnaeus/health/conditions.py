"""Find lasting problems in the numbers of a row of metrics, such as a learning rate that is far too high, or a task that is not trained.

The loss is compared with the loss of the untrained model, which is estimated by the median over the first updates. For cross-entropy it is
about the logarithm of the number of classes. A constant prediction is hardly better."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from linnaeus.health.alarm import Alarm
from linnaeus.health.running_scale import RunningScale

FIRST = 3  # updates whose median loss counts as that of the untrained model; during a warm-up the weights hardly change in so few
RECENT = 32  # newest updates, whose median loss is the recent loss
# Size of an update relative to the weights. In healthy runs the largest was 0.043 (a small GPT at the end of its warm-up); with a 30 times
# higher learning rate that ruined the training it was 0.10 to 0.12, and smaller later because the weights had grown.
LARGE_UPDATE, HUGE_UPDATE = 0.06, 0.5
NO_BETTER, DIVERGED = 0.9, 1.5  # limits of the recent loss over that of the untrained model: after large updates, and after any
SATURATED = 2.0  # limit of the recent loss of a task over its loss in the untrained model
STUCK, STUCK_FROM = 0.95, 0.5  # limit of the same ratio, which is checked from this fraction of the run on
RUNAWAY = 0.9  # fraction of one task in the sum of all task weights
LEARNED, WORSE = 0.5, 1.1  # of the loss of the untrained model: training loss below the first, validation loss above the second


@dataclass(frozen=True)
class RowNumbers:
    """Numbers of a row of metrics, for T tasks.

    step: `global_step`. fraction: fraction of the run that is done, 0 to 1. update_ratios: parameter group -> ratio, see
    `optim.update_ratio`; {} if it was not measured. head_norms: for each task the largest gradient norm among the parameters of its output
    layer at the last update, [T]; NaN if unknown; () if that update was skipped. losses: mean loss of each task since the last row, [T].
    weights: task weights, [T]. weights_move: False if the task weights are constant, as the user has set them."""

    step: int
    fraction: float = 0.0
    update_ratios: Mapping[str, float] = field(default_factory=dict)
    head_norms: Sequence[float] = ()
    losses: Sequence[float] = ()
    weights: Sequence[float] = ()
    weights_move: bool = True


class Conditions:
    """Conditions of lasting problems. Pass the losses of all updates, in order, to `update`; `in_row` and `in_validation` then yield the
    problems that are present.

    warm: True for a warm start. The first losses are then not losses of an untrained model, and all comparisons with them are left out."""

    def __init__(self, tasks: Sequence[str], warm: bool) -> None:
        self.tasks, self.warm = tuple(tasks), warm
        self._first: list[float] = []
        self._first_of_tasks: list[list[float]] = [[] for _ in self.tasks]
        self._newest_update = (0.0, "")  # largest ratio of the last measured update, and its parameter group
        self._largest_update = 0.0

    @property
    def untrained(self) -> float:
        """Return the loss of the untrained model: the median of the first `FIRST` finite losses. Return NaN before `FIRST` finite losses
        were added, after a warm start, or if the median is not positive."""
        value = statistics.median(self._first) if len(self._first) == FIRST and not self.warm else math.nan
        return value if value > 0 else math.nan

    def update(self, losses: Sequence[float], of_tasks: Sequence[Sequence[float]]) -> None:
        """Add the losses of each update since the last row, in order. Only the first `FIRST` finite losses of the run, and of each task,
        are kept.

        losses: losses over all tasks, [n]. of_tasks: losses of each of T tasks, [n, T]."""
        _fill(self._first, losses)
        for task, first in enumerate(self._first_of_tasks):
            if len(first) < FIRST:
                _fill(first, [update[task] for update in of_tasks])

    def in_row(self, row: RowNumbers, scales: Mapping[str, RunningScale]) -> Iterator[Alarm]:
        """Yield an alarm for each problem that is present in `row`. At most one of the alarms is about the loss over all tasks. scales:
        name of a task, or `loss` for all tasks together -> the `RunningScale` with its newest training losses."""
        saturated = list(self._saturated(row, scales))
        some = len(saturated) < len(self.tasks)  # if all tasks are, the alarm is `divergence`
        yield from saturated if some else ()
        for alarm in self._loss(row, scales["loss"].recent(RECENT)):
            if not (saturated and some and alarm.kind == "divergence"):  # the high loss is that of these tasks
                yield alarm
        for task, norm, loss, weight in zip(self.tasks, row.head_norms, row.losses, row.weights):
            if norm == 0 and loss > 0 and weight > 0:
                text = f"the output layer of {task} has no gradient, and its loss is {loss:.4g}"
                yield Alarm("dead_task", row.step, text, None, (task,), loss)
        total = sum(row.weights)
        for task, weight in zip(self.tasks, row.weights) if row.weights_move else ():
            if len(self.tasks) > 1 and not weight <= RUNAWAY * total:
                yield Alarm("task_weights", row.step, f"the weight of {task} is {weight:.3g} of {total:.3g} in all", None, (task,), weight)

    def _saturated(self, row: RowNumbers, scales: Mapping[str, RunningScale]) -> Iterator[Alarm]:
        """Yield an alarm for each task whose output is certain and wrong.

        An output that says nothing (equal probabilities of C classes) has the loss log C, which is about the loss of the untrained model. A
        recent loss of twice that means that the true class has a probability of about C^-2: the output has nearly excluded it, in more than
        half of the last `RECENT` updates. In a healthy run the loss falls to that of the class frequencies, at most log C, before the
        output becomes certain; none of the 21 runs of tests/faults/healthy.py raises the alarm. The loss of the untrained model is the
        largest of the first losses here: it then is not too low if single batches have few labels. An output that is certain from the first
        update on is not found. With one task, `divergence` finds the same."""
        for task, first, weight in zip(self.tasks, self._first_of_tasks, row.weights) if not self.warm else ():
            if task not in scales or len(first) < FIRST or weight <= 0:
                continue
            recent, untrained = scales[task].recent(RECENT), max(first)
            if 0 < SATURATED * untrained < recent:
                yield Alarm("saturated_task", row.step, _level(recent, untrained, f" of {task}"), None, (task,), recent, untrained)

    def _loss(self, row: RowNumbers, recent: float) -> Iterator[Alarm]:
        if row.update_ratios:
            found = [(ratio, name) for name, ratio in row.update_ratios.items() if not name.endswith("_no_decay") and math.isfinite(ratio)]
            self._newest_update = max(found, default=(0.0, ""))
            self._largest_update = max(self._largest_update, self._newest_update[0])
        (ratio, group), untrained = self._newest_update, self.untrained
        if ratio > HUGE_UPDATE:
            text = f"an update changes the weights of group {group} by {100 * ratio:.0f} % of their size"
            yield Alarm("learning_rate", row.step, text, None, (), ratio, HUGE_UPDATE)
        elif self._largest_update > LARGE_UPDATE and recent > NO_BETTER * untrained:
            change = f"updates changed the weights by up to {100 * self._largest_update:.0f} % of their size"
            text = f"{_level(recent, untrained)}, although {change}"
            yield Alarm("learning_rate", row.step, text, None, (), recent, untrained)
        elif recent > DIVERGED * untrained:
            yield Alarm("divergence", row.step, _level(recent, untrained), None, (), recent, untrained)
        elif row.fraction >= STUCK_FROM and recent > STUCK * untrained:
            text = f"{_level(recent, untrained)}: nothing has been learned"
            yield Alarm("no_progress", row.step, text, None, (), recent, untrained)

    def in_validation(self, step: int, loss: float, scale: RunningScale) -> Iterator[Alarm]:
        """Yield an alarm if `loss`, the validation loss, is above `WORSE` x U while the recent training loss is below `LEARNED` x U. U is
        the loss of the untrained model. scale: the `RunningScale` with the newest training losses."""
        recent, untrained = scale.recent(RECENT), self.untrained
        if loss > WORSE * untrained and recent < LEARNED * untrained:
            text = f"the validation loss is {loss:.4g}, more than that of the untrained model ({untrained:.4g}); training: {recent:.4g}"
            yield Alarm("validation_gap", step, text, None, (), loss, untrained)

    def state_dict(self) -> dict[str, Any]:
        first_of_tasks = [list(first) for first in self._first_of_tasks]
        return {
            "first": list(self._first),
            "first_of_tasks": first_of_tasks,
            "newest_update": self._newest_update,
            "largest_update": self._largest_update,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._first, self._largest_update = list(state["first"]), state["largest_update"]
        self._first_of_tasks = [list(first) for first in state.get("first_of_tasks", [[math.inf] * FIRST for _ in self.tasks])]
        ratio, group = state["newest_update"]
        self._newest_update = (ratio, group)


def _fill(first: list[float], losses: Sequence[float]) -> None:
    """Append the first finite values of `losses` to `first`, until it has `FIRST` values."""
    missing = FIRST - len(first)
    if missing:
        first += [loss for loss in losses if math.isfinite(loss)][:missing]


def _level(recent: float, untrained: float, of: str = "") -> str:
    return f"the loss{of} is {recent:.4g}, and that of the untrained model was {untrained:.4g}"
