"""Trials that differ in their seed alone, as one line: mean and standard deviation of what they are compared by and of each column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from linnaeus.sweep.outcomes import Metric, Outcome
from linnaeus.sweep.trials import Trial

SEED = "seed"


@dataclass(frozen=True)
class Group:
    """`values` of the other parameters; `count` trials that have ended well; `numbers`: of the metric, then of each column, mean and
    standard deviation over them, None where none has it and where a deviation needs a second."""

    values: tuple[str, ...]
    count: int
    numbers: list[tuple[float | None, float | None]]


def over_seeds(trials: Sequence[Trial], outcomes: Mapping[int, Outcome], metric: Metric, columns: Sequence[str]) -> list[Group]:
    """The best mean first, then those without one; nothing where no two trials differ in their seed alone, or all do."""
    found: dict[tuple[str, ...], list[Outcome]] = {}
    for trial in trials:
        if SEED not in trial.values or len(trial.values) == 1:
            return []
        own = found.setdefault(tuple(value for key, value in trial.values.items() if key != SEED), [])
        if trial.number in outcomes and outcomes[trial.number].value is not None:
            own.append(outcomes[trial.number])
    if all(len(group) < 2 for group in found.values()):
        return []
    groups = []
    for values, group in found.items():
        rows = [[outcome.value for outcome in group], *([outcome.columns.get(name) for outcome in group] for name in columns)]
        groups.append(Group(values, len(group), [_moments([x for x in row if x is not None]) for row in rows]))
    sign = 1 if metric.mode == "min" else -1
    return sorted(groups, key=lambda group: (group.numbers[0][0] is None, sign * (group.numbers[0][0] or 0.0)))


def _moments(values: Sequence[float]) -> tuple[float | None, float | None]:
    return fmean(values) if values else None, stdev(values) if len(values) > 1 else None
