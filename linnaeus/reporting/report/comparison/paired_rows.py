"""Compute paired differences between two groups of runs, from the tables of samples of their last validations.

A table of samples has one row per sample. In a column with the name of a metric, a row has the value for one sample; the mean of the column
is the metric. For a group with several runs, the value for a sample is its mean over the runs.

Samples of the two groups are paired by name. The 95 % interval is from a cluster bootstrap of the pairwise differences. A sample that is
difficult for both groups changes no difference, so it does not widen the interval. If both groups have several runs, the variation over
their seeds widens it: the half-widths of the two independent parts are added in quadrature.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from linnaeus.reporting.report.comparison.compared_runs import Group
from linnaeus.reporting.report.comparison.seed_variation import seed_half_width
from linnaeus.reporting.report.run_files import Rows, RunFiles


class Difference(NamedTuple):
    """Difference of a metric between two groups. `value`: second group minus first group. `low`, `high`: ends of its 95 % interval; NaN if
    unknown. `samples`: number of paired samples; 0 if `value` is the difference of the final metrics. `of`: largest number of samples in a
    table. `reference`: mean of the first group over the paired samples, or its final metric."""

    value: float
    low: float
    high: float
    samples: int
    of: int
    reference: float

    @property
    def significant(self) -> bool:
        """Return True if the interval excludes 0; False if the interval is unknown."""
        return self.low > 0 or self.high < 0


class PairedRows:
    """Calculator of paired differences of metrics between groups of runs, sample by sample. Each table of samples is read once."""

    def __init__(self) -> None:
        self._tables: dict[RunFiles, dict[str, dict[str, str]]] = {}

    def table(self, run: RunFiles) -> dict[str, dict[str, str]]:
        """Return the table of samples of `run`: {sample name: {column: text}}; {} if there is no table, or if sample names are not
        unique."""
        if run not in self._tables:
            rows: Rows = run.table("samples")
            named = {row["sample"]: row for row in rows}
            self._tables[run] = named if len(named) == len(rows) else {}
        return self._tables[run]

    def difference(self, first: Group, other: Group, key: str) -> Difference | None:
        """Return the difference of the metric `key`, `other` minus `first`; None if a group has no value of the metric.

        Samples that have a value in the tables of all runs are compared in pairs, and other samples are ignored. Without such samples,
        return the difference of the means of the final metrics, whose interval is from the variation over the seeds alone."""
        a, b = first.mean(key), other.mean(key)
        if a is None or b is None:
            return None
        column = key.partition("/")[2]
        tables = [[self.table(run) for run in group.runs] for group in (first, other)]
        names = _common_names([table for own in tables for table in own], column)
        seeds = seed_half_width(first.values(key), other.values(key))
        if not names:
            width = np.nan if seeds is None else seeds
            return Difference(b - a, b - a - width, b - a + width, 0, 0, a)
        means = [np.mean([[float(table[name][column]) for name in names] for table in own], axis=0) for own in tables]
        value, (low, high) = float((means[1] - means[0]).mean()), _interval(means[1] - means[0], _groups(tables[0][0], names))
        ends = value - math.hypot(value - low, seeds or 0), value + math.hypot(high - value, seeds or 0)
        most = max(sum(row[column] != "" for row in table.values()) for own in tables for table in own)
        return Difference(value, *ends, len(names), most, float(means[0].mean()))


def _common_names(tables: Sequence[dict[str, dict[str, str]]], column: str) -> list[str]:
    """Return the names of the samples that have a value in `column` of every table, in the order of the first table.

    Return [] if a table is empty or lacks the column. tables: results of `PairedRows.table`."""
    if any(not table or column not in next(iter(table.values())) for table in tables):
        return []
    return [name for name in tables[0] if all(table.get(name, {}).get(column) not in (None, "") for table in tables)]


def _groups(table: dict[str, dict[str, str]], names: Sequence[str]) -> np.ndarray | None:
    return np.array([int(table[name]["group"]) for name in names]) if "group" in table[names[0]] else None


def _interval(differences: np.ndarray, group: np.ndarray | None) -> tuple[float, float]:
    """Return (lower end, upper end) of the 95 % interval of the mean of `differences`; NaN with fewer than two groups of samples.

    differences: [N], one value per sample. group: [N], number of the group of each sample, such as its observation; None: each sample is a
    group."""
    from linnaeus.metrics.bootstrap import group_sums, intervals

    terms = (differences, np.ones(len(differences)))
    low, high = intervals(*group_sums({"difference": terms}, group, len(differences)))
    return float(low[0]), float(high[0])
