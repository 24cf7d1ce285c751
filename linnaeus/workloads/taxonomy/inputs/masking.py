"""Mask metadata in training, so that one model works with any of its components missing, and convert missing labels to null labels.

For each sample, all components are masked with probability `schedule.meta_mask_prob`; otherwise, with probability
`schedule.partial_meta_mask_prob`, one combination of components is masked, drawn from a list by weight. Draws are functions of
(seed, global_step, position) and applied after mixing, on the device. Validation passes mask the same components for all samples.

A missing label (-1) is ignored, or converted to a null label, the label of the null class "not known at this rank". The null class is the
last class of a rank, with the number C_r. `head.nulls` selects the treatment:

    ignore     missing labels are not trained on; there is no null class
    phase_in   in training a missing label becomes a null label with probability 1 - `schedule.null_mask_prob`, and is ignored otherwise;
               the draw is a function of (seed, global_step, position)
    predict    every missing label becomes a null label at every step; `schedule.null_mask_prob` must keep its default

In heads that are one distribution on the tree, the null class is a child of every taxon that has children. A missing label below a taxon
without children, or with a known taxon at a finer rank (a hole in the lineage), then has no such class and is ignored.

Validation does not convert missing labels: accuracies are over known labels and real classes, and `null_recall` and `null_precision`
(`metrics/accuracy.py`) measure the null class."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from linnaeus import randomness
from linnaeus.config.schema import Config
from linnaeus.config.schema_schedule import RampConfig, ScheduleConfig
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.augment.draws import sample_keys, uniform_draws
from linnaeus.workloads.taxonomy.heads import is_hierarchical
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

FULL_OR_PARTIAL, PHASE_IN = 1, 2  # the keys of both kinds of draws within the masking stream
DEFAULT = RampConfig(0.15, 0.15, "0%", "100%")  # of both probabilities in conf/schedule/default.yaml


class MetadataMasking:
    """Random masks of metadata components. `choices`: bool [C, M], the combinations of components from which partial masking draws one;
    True for a masked component."""

    def __init__(self, config: ScheduleConfig, components: Sequence[str], seed: int) -> None:
        """Read the combinations of components to mask, and their weights, from `config`. Raise `ConfigError` for a name not in
        `components`, for a combination that is listed twice, and for invalid weights."""
        listed: Sequence[Sequence[str]] = config.partial_mask_whitelist
        if not listed:  # draw from all proper subsets
            listed = [names for size in range(1, len(components)) for names in combinations(components, size)]
        weights = _weights(config, len(listed))
        rows = [component_mask(names, components, "schedule.partial_mask_whitelist") for names in listed]
        for i, names in enumerate(map(set, listed)):
            if names in map(set, listed[:i]):
                once = "list it once, with a larger weight in schedule.partial_mask_weights"
                raise ConfigError(f"schedule.partial_mask_whitelist[{i}] is listed twice; {once}")
        self.seed = seed
        self.choices = np.array(rows, dtype=bool).reshape(len(listed), len(components))  # [C, M]: True for a masked component
        self.cumulative = np.cumsum(weights) / np.sum(weights) if len(weights) else weights  # float64 [C]: cumulative probability

    def draw(self, steps: np.ndarray, positions: np.ndarray, full: np.ndarray, partial: np.ndarray) -> np.ndarray:
        """Return the mask of each sample, bool [B, M], True for a masked component.

        `steps` and `positions`: int64 [B], update and position in the training order of each sample. `full` and `partial`: float [B], the
        probabilities that all components, or one combination of components, are masked at the sample's update."""
        u = uniform_draws(sample_keys(self.seed, randomness.MASK, steps, positions), FULL_OR_PARTIAL, 3)
        mask = np.zeros((len(positions), self.choices.shape[1]), dtype=bool)
        if len(self.choices):
            drawn = np.searchsorted(self.cumulative, u[:, 2], side="right").clip(max=len(self.choices) - 1)
            mask |= self.choices[drawn] & (u[:, 1] < partial)[:, None]
        return mask | (u[:, 0] < full)[:, None]


def can_mask_partly(config: ScheduleConfig, components: Sequence[str]) -> bool:
    """Return True if partial masking has a combination of components to draw."""
    return len(components) > 1 or bool(config.partial_mask_whitelist)


def masking_notes(config: ScheduleConfig, components: Sequence[str]) -> tuple[str, ...]:
    """Return a line for each setting of masking that has no effect with these components, unless it is the default. The lines are printed
    at the start of the run."""
    notes = []
    if ramp_used(config.meta_mask_prob) and config.meta_mask_prob != DEFAULT and not components:
        notes.append("schedule.meta_mask_prob has no effect: data.components is empty")
    partial = config.partial_meta_mask_prob
    if ramp_used(partial) and partial != DEFAULT and not can_mask_partly(config, components):
        notes.append(f"schedule.partial_meta_mask_prob has no effect: data.components={list(components)} has no proper subset to mask")
    if config.partial_mask_whitelist and not ramp_used(config.partial_meta_mask_prob):
        notes.append("schedule.partial_mask_whitelist has no effect: schedule.partial_meta_mask_prob is 0")
    return tuple(notes)


def never_absent(config: Config, components: Sequence[str], present: np.ndarray) -> tuple[str, ...]:
    """Return a warning if every training row has a metadata component, and nothing is masked.

    `present`: bool [N, M], True where a training row has a component."""
    schedule = config.schedule
    partly = ramp_used(schedule.partial_meta_mask_prob) and can_mask_partly(schedule, components)
    masked = ramp_used(schedule.meta_mask_prob) or partly
    always = [name for name, column in zip(components, present.T, strict=True) if len(column) and column.all()]
    if masked or not always or getattr(config.model, "fusion", "joint") == "separate":
        return ()
    advice = ", or model.fusion=separate" if config.model.name == "timm" else ""
    found = " and ".join(always)
    return (
        f"data.components: every training row has {found}, and schedule.meta_mask_prob is 0, so answers without metadata are not trained; "
        f"set schedule.meta_mask_prob.start=0.5 schedule.meta_mask_prob.end=0.5{advice}",
    )


def component_mask(names: Sequence[str], components: Sequence[str], key: str) -> np.ndarray:
    """Return bool [M], True for each of `components` that is in `names`.

    Raise `ConfigError` for an empty list, an unknown name or a repeated one. `key`: configuration key of `names`, for messages."""
    for name in names:
        if name not in components:
            raise ConfigError(f"{key}: {name!r} is not in data.components={list(components)}")
    if not names or len(set(names)) != len(names):
        raise ConfigError(f"{key}: {list(names)} must name at least one component, and each only once")
    return np.array([c in names for c in components], dtype=bool)


def ramp_used(ramp: RampConfig) -> bool:
    """Return True if the scheduled value (a ramp from `start` to `end`) is above 0 at any time."""
    return ramp.start > 0 or ramp.end > 0


def _weights(config: ScheduleConfig, count: int) -> np.ndarray:
    given = config.partial_mask_weights
    if not given:
        return np.ones(count)
    if len(given) != len(config.partial_mask_whitelist):
        raise ConfigError(
            f"schedule.partial_mask_weights has {len(given)} weights for the {len(config.partial_mask_whitelist)} combinations of "
            "schedule.partial_mask_whitelist; set one weight per combination, or none"
        )
    if min(given) < 0 or sum(given) <= 0:
        raise ConfigError(f"schedule.partial_mask_weights={list(given)} must be 0 or more, with at least one above 0")
    return np.array(given, dtype=np.float64)


class NullPolicy:
    """Conversion of missing labels (-1) to null labels (the number of classes of the rank), for `head.nulls` phase_in and predict. A null
    label means "not known at this rank"."""

    def __init__(self, config: Config, tree: TaxonomyTree) -> None:
        self.seed, self.always = config.seed, config.head.nulls == "predict"
        self.null_class, self.offsets = np.array(tree.sizes), np.array(tree.offsets[:-1])
        self.has_children = tree.has_children if is_hierarchical(config.head) else None  # None if the head is not one on the tree

    @classmethod
    def from_config(cls, config: Config, tree: TaxonomyTree) -> NullPolicy | None:
        """Return the conversion that `config` defines; None for head.nulls=ignore.

        Raise `ConfigError` for head.nulls=phase_in if schedule.null_mask_prob is always 1, and for another head.nulls if
        schedule.null_mask_prob is not 1 at every step."""
        ramp, nulls = config.schedule.null_mask_prob, config.head.nulls
        always_masked = ramp.start == ramp.end == 1
        if nulls == "phase_in" and always_masked:
            raise ConfigError(
                "head.nulls=phase_in needs schedule.null_mask_prob below 1 at some step, otherwise the null class is never learnt; "
                "to learn all null labels set head.nulls=predict"
            )
        if nulls != "phase_in" and not always_masked:
            raise ConfigError(f"schedule.null_mask_prob has no effect with head.nulls={nulls}; set head.nulls=phase_in, or remove it")
        return None if nulls == "ignore" else cls(config, tree)

    def notes(self, ranks: Sequence[str], counts: Sequence[int]) -> tuple[str, ...]:
        """Return the lines to print at the start: the ranks without a missing label that can be learnt as a null label. `counts`: per rank,
        the number of such labels in the training set.

        Raise `ConfigError` if all `counts` are 0."""
        name = f"head.nulls={'predict' if self.always else 'phase_in'}"
        if not any(counts):
            where = "" if self.has_children is None else " at a rank below a taxon that has children"
            raise ConfigError(f"{name}: no training sample has a null label{where}, so there is nothing to learn; set head.nulls=ignore")
        without = [rank for rank, count in zip(ranks, counts, strict=True) if not count]
        return (f"{name}: no training sample has a learnable null label at {', '.join(without)}",) if without else ()

    def apply(self, steps: np.ndarray, positions: np.ndarray, label: np.ndarray, masked: np.ndarray, usable: np.ndarray) -> np.ndarray:
        """Return `label`, int64 [B, R], in which missing labels of `usable` samples (bool [B]) are converted to null labels.

        `steps` and `positions`: int64 [B]. `masked`: float [B], the probability that a missing label is not converted; it has no effect
        with head.nulls=predict."""
        converted = self.learnable(label) & usable[:, None]
        if not self.always:
            u = uniform_draws(sample_keys(self.seed, randomness.MASK, steps, positions), PHASE_IN, label.shape[1])
            converted &= u >= masked[:, None]
        return np.where(converted, self.null_class, label)

    def learnable(self, label: np.ndarray) -> np.ndarray:
        """Return bool [B, R], True for missing labels that can be learnt as null labels. `label`: int64 [B, R].

        With head=linear and heads of plugins every missing label can be learnt. With the other heads, a missing label can be learnt at the
        ranks finer than the finest known taxon, if this taxon has children."""
        if self.has_children is None:
            return label < 0
        nodes = np.where(label >= 0, label + self.offsets, -1)
        finest = nodes.max(axis=1)  # finer taxa have larger numbers
        rank = np.where(finest >= 0, nodes.argmax(axis=1), -1)
        return (np.arange(label.shape[1]) > rank[:, None]) & self.has_children[finest][:, None]
