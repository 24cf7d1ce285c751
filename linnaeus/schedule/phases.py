"""Curriculum phases: named parts of a run with a learning-rate multiplier, a mixture of data sources and weights of dimensions.

A phase begins at `start` and is over at `end`, both durations. Where a phase begins before the one before it is over, the two are
cross-faded: the share of the new one rises linearly from 0 at its start to 1 at the end of the old one, as a `Ramp` does. Everything
here is a pure function of the step (`global_step` before the update that uses the value) and of nothing else, so it is the same on every
process, in every loader worker and after a resume. No torch in here; frozen and picklable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from linnaeus.config.schema_schedule import PhaseConfig
from linnaeus.durations import Duration
from linnaeus.errors import ConfigError

Weights = tuple[tuple[str, float], ...]  # (name, weight), as the configuration has them


@dataclass(frozen=True)
class Phase:
    """One phase in whole steps: it has a share in the updates `start` to `end` - 1. `data` and `dimensions` are () where the
    configuration names none."""

    name: str
    start: int
    end: int
    description: str
    lr: float
    data: Weights
    dimensions: Weights


@dataclass(frozen=True)
class Phases:
    """The curriculum of a run, in order of start: phases cover it without a gap, at most two at once."""

    phases: tuple[Phase, ...]

    @classmethod
    def resolve(cls, config: Mapping[str, PhaseConfig], total_steps: int, steps_per_epoch: int) -> Phases | None:
        """None where the configuration has no phases. Raises `ConfigError` for phases that cannot follow each other."""
        if not config:
            return None
        phases = tuple(_phase(name, phase, total_steps, steps_per_epoch) for name, phase in config.items())
        _check_order(phases)
        _check_cover(phases, total_steps)
        return cls(phases)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(phase.name for phase in self.phases)

    def crossfades(self) -> list[tuple[int, int]]:
        """Of each phase but the first: the step at which it begins to take over, and that from which on it has."""
        return [(new.start, old.end) for old, new in pairwise(self.phases)]

    # ---- at steps

    def shares(self, steps: np.ndarray) -> np.ndarray:
        """float64 [n, P], rows sum to 1: how much of each phase there is at each of `steps` (int [n]). Before the run it is all the
        first, after it all the last."""
        steps = np.asarray(steps, np.float64)
        risen = np.ones((len(self.phases) + 1, len(steps)))
        for number, (begin, whole) in enumerate(self.crossfades(), 1):
            risen[number] = np.clip((steps - begin) / (whole - begin), 0.0, 1.0) if whole > begin else steps >= begin
        risen[-1] = 0.0
        return (risen[:-1] * (1.0 - risen[1:])).T

    def at(self, step: int) -> tuple[str, str]:
        """(name, description) of the phase with the largest share; halfway between two, the later one."""
        shares = self.shares(np.array([step]))[0]
        phase = self.phases[len(shares) - 1 - int(shares[::-1].argmax())]
        return phase.name, phase.description

    def lr_multiplier(self, step: int) -> float:
        """What the learning rate of the update at `step` is multiplied by. Asked at every update: a microsecond, where `shares` of one
        step takes thirty; the same bits."""
        value = self.phases[0].lr
        for old, new in pairwise(self.phases):
            risen = 1.0 if step >= old.end else 0.0 if step <= new.start else (step - new.start) / (old.end - new.start)
            value = value * (1.0 - risen) + new.lr * risen
        return value

    def mixture(self, steps: np.ndarray, sources: Sequence[str], sizes: Sequence[int]) -> np.ndarray:
        """float64 [n, S], rows sum to 1: the probability that a sample of each of `steps` (int [n]) comes from each of `sources`. A phase
        without `data` draws in proportion to `sizes`; a source that a phase with `data` does not name has none of it."""
        by_size = shares_of_sizes(sizes)
        rows = [normalised(dict(phase.data), sources, 0.0) if phase.data else by_size for phase in self.phases]
        return self._blend(steps, rows)

    def dimension_weights(self, steps: np.ndarray, dimensions: Sequence[str]) -> np.ndarray:
        """float64 [n, D], rows sum to 1: the weight of each of `dimensions` at each of `steps` (int [n]). One that a phase does not name
        weighs 1 before the phase's weights are scaled to sum to 1."""
        rows = [normalised(dict(phase.dimensions), dimensions, 1.0) for phase in self.phases]
        return self._blend(steps, rows)

    def _blend(self, steps: np.ndarray, table: Sequence[np.ndarray]) -> np.ndarray:
        """[n, K]: the row [K] of each phase in `table`, in their shares. At most two are more than 0, so the order of the sum does not
        matter; a matrix product might fuse its steps, and round elsewhere otherwise."""
        shares = self.shares(steps)
        blended = np.zeros((len(shares), len(table[0])))
        for number, row in enumerate(table):
            blended += shares[:, number, None] * row
        return blended

    # ---- for the plan

    def lr_milestones(self, total_steps: int) -> list[tuple[str, int]]:
        """(what happens to the learning rate, step): where a phase brings another multiplier, and where it is reached. Phases that a
        short run has no step for are left out."""
        first = self.phases[0]
        moments = [(f"x {first.lr:g} ({first.name})", 0)] if first.lr != 1.0 else []
        for (old, new), (begin, whole) in zip(pairwise(self.phases), self.crossfades(), strict=True):
            if new.lr != old.lr and begin < total_steps and new.start < new.end:
                moments += [(f"towards x {new.lr:g}", begin)] if begin < whole else []
                moments.append((f"x {new.lr:g} ({new.name})", whole))
        return moments

    def unused_phases(self, last_step: int) -> list[str]:
        """A line for each phase that has no update in a run of `last_step`."""
        idle = [phase for phase in self.phases if phase.start >= min(phase.end, last_step)]
        return [f"schedule.phases.{p.name}: steps {p.start} to {p.end} give it none of the {last_step} updates of the run" for p in idle]

    def unused_sources(self, sources: Sequence[str], last_step: int) -> list[str]:
        """Those of `sources` that no update of a run of `last_step` draws from; a phase without `data` draws from all."""
        moments = zip(self.phases, [(0, 0), *self.crossfades()], strict=True)
        acting = [phase for phase, (begin, whole) in moments if phase.start + (begin < whole) < min(phase.end, last_step)]
        if not all(phase.data for phase in acting):
            return []
        drawn = {name for phase in acting for name, weight in phase.data if weight}
        return [name for name in sources if name not in drawn]

    # ---- names

    def check_names(self, sources: Sequence[str], dimensions: Sequence[str]) -> None:
        """Raises `ConfigError` for a source or a dimension that the data (`sources`) or the model (`dimensions`) do not have, and for
        weights that leave nothing of what they have."""
        for phase in self.phases:
            for kind, given, known in (("data", phase.data, sources), ("dimensions", phase.dimensions, dimensions)):
                _check_known(f"schedule.phases.{phase.name}.{kind}", kind, given, known)


def shares_of_sizes(sizes: Sequence[int]) -> np.ndarray:
    """float64 [S]: each size over their sum."""
    assert sum(sizes) > 0, f"no samples in {sizes}"
    return np.array(sizes, np.float64) / sum(sizes)


def normalised(weights: Mapping[str, float], names: Sequence[str], otherwise: float) -> np.ndarray:
    """float64 [len(names)]: the weight of each name, `otherwise` where it has none, scaled to sum to 1."""
    found = np.array([weights.get(name, otherwise) for name in names], np.float64)
    assert found.sum() > 0, f"{weights} leave nothing of {names}: check_names comes first"
    return found / found.sum()


# -- from the configuration ----------------------------------------------------------------------------------------------------


def _phase(name: str, config: PhaseConfig, total_steps: int, steps_per_epoch: int) -> Phase:
    key = f"schedule.phases.{name}"
    lengths = (total_steps, steps_per_epoch)
    start, end = Duration.parse(config.start, f"{key}.start"), Duration.parse(config.end, f"{key}.end")
    if end.in_steps(*lengths) <= start.in_steps(*lengths):
        at = f"(step {end.to_steps(*lengths)}) does not come after {key}.start={config.start} (step {start.to_steps(*lengths)})"
        raise ConfigError(f"{key}.end={config.end} {at}; make it later")
    if config.data and not any(config.data.values()):
        raise ConfigError(f"{key}.data={config.data}: all weights are 0, so nothing could be drawn; give one that is more")
    data, dimensions = tuple(config.data.items()), tuple(config.dimensions.items())
    return Phase(name, start.to_steps(*lengths), end.to_steps(*lengths), config.description, config.lr, data, dimensions)


def _check_order(phases: Sequence[Phase]) -> None:
    """Sorted by start and by end, and each over when the next but one begins."""
    for old, new in pairwise(phases):
        key = f"schedule.phases.{new.name}"
        if new.start < old.start:
            raise ConfigError(f"{key} starts at step {new.start}, before {old.name} (step {old.start}); sort the phases by their start")
        if new.end < old.end:
            raise ConfigError(f"{key} ends at step {new.end}, before {old.name} (step {old.end}), whose place it takes; make it later")
    for old, between, new in zip(phases, phases[1:], phases[2:]):
        if new.start < old.end:
            at_once = f"{old.name}, {between.name} and {new.name} overlap from step {new.start} to step {old.end}"
            raise ConfigError(
                f"schedule.phases: {at_once}; at most two phases may, so let {new.name} start later or {old.name} end earlier"
            )


def _check_cover(phases: Sequence[Phase], total_steps: int) -> None:
    """From the first step of the run to its last."""
    first, last = phases[0], phases[-1]
    if first.start > 0:
        raise ConfigError(f"schedule.phases.{first.name} starts at step {first.start}, and no phase covers what is before; start at 0%")
    for old, new in pairwise(phases):
        if new.start > old.end:
            gap = f"no phase covers steps {old.end} to {new.start}, between {old.name} and {new.name}"
            raise ConfigError(f"schedule.phases: {gap}; end the one later or start the other earlier")
    if last.end < total_steps:
        gap = f"schedule.phases.{last.name} ends at step {last.end}, and no phase covers the rest of the run of {total_steps} steps"
        raise ConfigError(f"{gap}; end at 100%")


def _check_known(key: str, kind: str, given: Weights, known: Sequence[str]) -> None:
    what, lack = ("source", "this data has no named sources") if kind == "data" else ("dimension", "this model has no dimensions")
    unknown = next((name for name, _ in given if name not in known), None)
    if unknown is not None and not known:
        raise ConfigError(f"{key} names {unknown}, but {lack}; leave {key} out")
    if unknown is not None:
        raise ConfigError(f"{key} names {unknown}, which is no {what}; there are {', '.join(known)}")
    weights = dict(given)
    if given and not any(weights.get(name, 1.0 if kind == "dimensions" else 0.0) for name in known):
        raise ConfigError(f"{key}: all {what}s have weight 0; give one that is more")
