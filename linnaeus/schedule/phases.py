"""Curriculum phases: named parts of a run. Each phase has a learning-rate multiplier, a mixture of data sources and weights of the model's
dimensions (named parts of the model, such as adapters).

A phase starts at `start` and ends at `end`, both durations. If a new phase overlaps an old one, they are cross-faded: the share of the new
phase rises linearly from 0 at its start to 1 at the end of the old phase. All values are pure functions of the step (`global_step` before
the update that uses the value), so they are equal on every process rank, in every loader worker and after a resume. The objects can be
pickled, and this module does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from linnaeus.config.schema_schedule import PhaseConfig
from linnaeus.durations import Duration
from linnaeus.errors import ConfigError

Weights = tuple[tuple[str, float], ...]  # (name, weight), in the order of the configuration


@dataclass(frozen=True)
class Phase:
    """One phase with its start and end in whole steps. It affects the updates at steps `start` to `end` - 1.

    `lr`: the learning-rate multiplier. `data`, `dimensions`: weights of data sources and of named parts of the model; () if the
    configuration gives none."""

    name: str
    start: int
    end: int
    description: str
    lr: float
    data: Weights
    dimensions: Weights


@dataclass(frozen=True)
class Phases:
    """All curriculum phases of a run, sorted by their start. Every step of the run is in a phase, and at most two phases overlap at any
    step."""

    phases: tuple[Phase, ...]

    @classmethod
    def resolve(cls, config: Mapping[str, PhaseConfig], total_steps: int, steps_per_epoch: int) -> Phases | None:
        """Return the phases of the configuration with durations converted to steps, or None if there are no phases.

        Raise `ConfigError` if the phases are not sorted, if there is a gap between them, or if more than two overlap."""
        if not config:
            return None
        phases = tuple(_phase(name, phase, total_steps, steps_per_epoch) for name, phase in config.items())
        _check_order(phases)
        _check_cover(phases, total_steps)
        return cls(phases)

    def crossfades(self) -> list[tuple[int, int]]:
        """Return (start step, end step) of the cross-fade into each phase but the first.

        If start and end are equal, the phase does not overlap the phase before."""
        return [(new.start, old.end) for old, new in pairwise(self.phases)]

    # ---- at steps

    def shares(self, steps: np.ndarray) -> np.ndarray:
        """Return the share of each of the P phases, float64 [n, P], at each of `steps` (int [n]). Each row sums to 1.

        Before the run the first phase has share 1, after the run the last phase."""
        steps = np.asarray(steps, np.float64)
        fade_in = np.ones((len(self.phases) + 1, len(steps)))
        for number, (start, end) in enumerate(self.crossfades(), 1):
            fade_in[number] = np.clip((steps - start) / (end - start), 0.0, 1.0) if end > start else steps >= start
        fade_in[-1] = 0.0
        return (fade_in[:-1] * (1.0 - fade_in[1:])).T

    def at(self, step: int) -> tuple[str, str]:
        """Return (name, description) of the phase with the largest share at `step`. Of two phases with equal shares, return the later
        one."""
        shares = self.shares(np.array([step]))[0]
        phase = self.phases[len(shares) - 1 - int(shares[::-1].argmax())]
        return phase.name, phase.description

    def lr_multiplier(self, step: int) -> float:
        """Return the factor by which the learning rate of the update at `step` is multiplied.

        This is called at every update. It takes 1 us and gives the same bits as a computation with `shares`, which would take 30 us."""
        value = self.phases[0].lr
        for old, new in pairwise(self.phases):
            fade_in = 1.0 if step >= old.end else 0.0 if step <= new.start else (step - new.start) / (old.end - new.start)
            value = value * (1.0 - fade_in) + new.lr * fade_in
        return value

    def mixture(self, steps: np.ndarray, sources: Sequence[str], sizes: Sequence[int]) -> np.ndarray:
        """Return the probability that a sample comes from each of S = len(`sources`) sources, float64 [n, S], for the updates at `steps`
        (int [n]). Rows sum to 1.

        A phase without `data` draws in proportion to `sizes`. A phase with `data` does not draw from sources that `data` does not name."""
        by_size = shares_of_sizes(sizes)
        rows = [normalised_weights(dict(phase.data), sources, 0.0) if phase.data else by_size for phase in self.phases]
        return self._blend(steps, rows)

    def dimension_weights(self, steps: np.ndarray, dimensions: Sequence[str]) -> np.ndarray:
        """Return the weight of each of the D = len(`dimensions`) named parts of the model, float64 [n, D], for the updates at `steps` (int
        [n]). Rows sum to 1.

        A dimension that a phase does not name has weight 1 before the weights of the phase are scaled to sum to 1."""
        rows = [normalised_weights(dict(phase.dimensions), dimensions, 1.0) for phase in self.phases]
        return self._blend(steps, rows)

    def _blend(self, steps: np.ndarray, table: Sequence[np.ndarray]) -> np.ndarray:
        """Return the average of the rows [K] of `table`, float64 [n, K]. `table` has one row per phase; the row is weighted by the share of
        its phase at each of `steps` (int [n]).

        At most two shares are above 0, so the order of the sum does not affect rounding. A matrix product could use fused multiply-adds and
        round differently between machines."""
        shares = self.shares(steps)
        blended = np.zeros((len(shares), len(table[0])))
        for number, row in enumerate(table):
            blended += shares[:, number, None] * row
        return blended

    # ---- for the plan

    def lr_milestones(self, total_steps: int) -> list[tuple[str, int]]:
        """Return (description, step) of each change of the learning-rate multiplier, for the printed schedule: start and end of each
        cross-fade.

        Phases that contain no step, as may happen in a short run, are left out."""
        first = self.phases[0]
        milestones = [(f"x {first.lr:g} ({first.name})", 0)] if first.lr != 1.0 else []
        for (old, new), (start, end) in zip(pairwise(self.phases), self.crossfades(), strict=True):
            if new.lr != old.lr and start < total_steps and new.start < new.end:
                milestones += [(f"towards x {new.lr:g}", start)] if start < end else []
                milestones.append((f"x {new.lr:g} ({new.name})", end))
        return milestones

    def unused_phases(self, last_step: int) -> list[str]:
        """Return a warning line for each phase that has no update in a run of `last_step` updates."""
        unused = [phase for phase in self.phases if phase.start >= min(phase.end, last_step)]
        return [f"schedule.phases.{p.name}: steps {p.start} to {p.end} contain none of the {last_step} updates of the run" for p in unused]

    def unused_sources(self, sources: Sequence[str], last_step: int) -> list[str]:
        """Return the names in `sources` that no update in a run of `last_step` updates draws from.

        A phase without `data` draws from all sources."""
        crossfades = zip(self.phases, [(0, 0), *self.crossfades()], strict=True)
        used = [phase for phase, (start, end) in crossfades if phase.start + (start < end) < min(phase.end, last_step)]
        if not all(phase.data for phase in used):
            return []
        drawn = {name for phase in used for name, weight in phase.data if weight}
        return [name for name in sources if name not in drawn]

    # ---- names

    def check_names(self, sources: Sequence[str], dimensions: Sequence[str]) -> None:
        """Raise `ConfigError` if a phase names an unknown source or dimension, or gives weight 0 to all sources or all dimensions."""
        for phase in self.phases:
            for kind, weights, known in (("data", phase.data, sources), ("dimensions", phase.dimensions, dimensions)):
                _check_weights(f"schedule.phases.{phase.name}.{kind}", kind, weights, known)


def shares_of_sizes(sizes: Sequence[int]) -> np.ndarray:
    """Return each size divided by the sum of all sizes, float64 [S]."""
    assert sum(sizes) > 0, f"no samples in {sizes}"
    return np.array(sizes, np.float64) / sum(sizes)


def normalised_weights(weights: Mapping[str, float], names: Sequence[str], default: float) -> np.ndarray:
    """Return the weight of each name, scaled so that the sum is 1: float64 [len(names)].

    A name that is not in `weights` has weight `default`."""
    found = np.array([weights.get(name, default) for name in names], np.float64)
    assert found.sum() > 0, f"all of {names} have weight 0 in {weights}: call check_names first"
    return found / found.sum()


# -- from the configuration ----------------------------------------------------------------------------------------------------


def _phase(name: str, config: PhaseConfig, total_steps: int, steps_per_epoch: int) -> Phase:
    key = f"schedule.phases.{name}"
    lengths = (total_steps, steps_per_epoch)
    start, end = Duration.parse(config.start, f"{key}.start"), Duration.parse(config.end, f"{key}.end")
    if end.in_steps(*lengths) <= start.in_steps(*lengths):
        order = f"(step {end.to_steps(*lengths)}) does not come after {key}.start={config.start} (step {start.to_steps(*lengths)})"
        raise ConfigError(f"{key}.end={config.end} {order}; set a later end")
    if config.data and not any(config.data.values()):
        raise ConfigError(f"{key}.data={config.data}: all weights are 0, so no sample could be drawn; set one above 0")
    data, dimensions = tuple(config.data.items()), tuple(config.dimensions.items())
    return Phase(name, start.to_steps(*lengths), end.to_steps(*lengths), config.description, config.lr, data, dimensions)


def _check_order(phases: Sequence[Phase]) -> None:
    """Raise `ConfigError` if the phases are not sorted by start and by end, or if more than two phases overlap."""
    for old, new in pairwise(phases):
        key = f"schedule.phases.{new.name}"
        if new.start < old.start:
            raise ConfigError(f"{key} starts at step {new.start}, before {old.name} (step {old.start}); sort the phases by their start")
        if new.end < old.end:
            raise ConfigError(f"{key} ends at step {new.end}, before {old.name} (step {old.end}), which it follows; set a later end")
    for old, between, new in zip(phases, phases[1:], phases[2:]):
        if new.start < old.end:
            overlap = f"{old.name}, {between.name} and {new.name} overlap from step {new.start} to step {old.end}"
            raise ConfigError(f"schedule.phases: {overlap}; at most two may overlap: start {new.name} later or end {old.name} earlier")


def _check_cover(phases: Sequence[Phase], total_steps: int) -> None:
    """Raise `ConfigError` if a step of the run is not covered by a phase."""
    first, last = phases[0], phases[-1]
    if first.start > 0:
        raise ConfigError(f"schedule.phases.{first.name} starts at step {first.start}, and no phase covers the steps before; set it to 0%")
    for old, new in pairwise(phases):
        if new.start > old.end:
            gap = f"no phase covers steps {old.end} to {new.start}, between {old.name} and {new.name}"
            raise ConfigError(f"schedule.phases: {gap}; end {old.name} later or start {new.name} earlier")
    if last.end < total_steps:
        gap = f"schedule.phases.{last.name} ends at step {last.end}, and no phase covers the rest of the run of {total_steps} steps"
        raise ConfigError(f"{gap}; set its end to 100%")


def _check_weights(key: str, kind: str, weights: Weights, known: Sequence[str]) -> None:
    noun, missing = ("source", "this data has no named sources") if kind == "data" else ("dimension", "this model has no dimensions")
    unknown = next((name for name, _ in weights if name not in known), None)
    if unknown is not None and not known:
        raise ConfigError(f"{key} names {unknown}, but {missing}; remove {key}")
    if unknown is not None:
        raise ConfigError(f"{key} names {unknown}, which is not a {noun}; choose from {', '.join(known)}")
    by_name = dict(weights)
    if weights and not any(by_name.get(name, 1.0 if kind == "dimensions" else 0.0) for name in known):
        raise ConfigError(f"{key}: all {noun}s have weight 0; set one above 0")
