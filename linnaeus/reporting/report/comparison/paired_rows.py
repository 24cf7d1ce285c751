"""Compute paired differences between two groups of runs, from the tables of samples of their last validations.

A table of samples has one row per sample. In a column with the name of a metric, a row has the value for one sample; the mean of the column
is the metric. For a group with several runs, the value for a sample is its mean over the runs.

Samples of the two groups are paired by name. The 95 % interval is from a cluster bootstrap of the pairwise differences. A sample that is
difficult for both groups changes no difference, so it does not widen the interval. If both groups have several runs, the variation over
their seeds widens it: the half-widths of the two independent parts are added in quadrature.
"""

import contextlib
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


class Samples(NamedTuple):
    """Numbers in the table of samples of a run, N samples. `rows`: name of a sample -> its row. `columns`: name of a column of numbers ->
    float64 [N], NaN where a sample has no value. `group`: int64 [N], number of the group of each sample, such as its observation; None:
    each sample is a group."""

    rows: dict[str, int]
    columns: dict[str, np.ndarray]
    group: np.ndarray | None


class PairedRows:
    """Calculator of paired differences of metrics between groups of runs, sample by sample.

    Each table of samples is read once, and only its numbers are kept: with their texts, four tables of 20,000 samples take 106 MB."""

    def __init__(self) -> None:
        self._tables: dict[RunFiles, Samples | None] = {}
        self._places: dict[tuple[RunFiles, RunFiles], np.ndarray] = {}

    def table(self, run: RunFiles) -> Samples | None:
        """Return the numbers in the table of samples of `run`; None if there is no table, or if sample names are not unique."""
        if run not in self._tables:
            self._tables[run] = _read_samples(run.table("samples"))
        return self._tables[run]

    def difference(self, first: Group, other: Group, key: str) -> Difference | None:
        """Return the difference of the metric `key`, `other` minus `first`; None if a group has no value of the metric.

        Samples that have a value in the tables of all runs are compared in pairs, and other samples are ignored. Without such samples,
        return the difference of the means of the final metrics, whose interval is from the variation over the seeds alone."""
        a, b = first.mean(key), other.mean(key)
        if a is None or b is None:
            return None
        values, common, most = self._values([*first.runs, *other.runs], key.partition("/")[2])
        seeds = seed_half_width(first.values(key), other.values(key))
        if not len(common):
            width = np.nan if seeds is None else seeds
            return Difference(b - a, b - a - width, b - a + width, 0, 0, a)
        means = [np.mean(own, axis=0) for own in (values[: len(first.runs)], values[len(first.runs) :])]
        group = self._tables[first.runs[0]].group  # type: ignore[union-attr]
        value, (low, high) = float((means[1] - means[0]).mean()), _interval(means[1] - means[0], None if group is None else group[common])
        ends = value - math.hypot(value - low, seeds or 0), value + math.hypot(high - value, seeds or 0)
        return Difference(value, *ends, len(common), most, float(means[0].mean()))

    def _values(self, runs: Sequence[RunFiles], column: str) -> tuple[list[np.ndarray], np.ndarray, int]:
        """Return (the values in `column` of the samples that have one in the table of every run, [R] arrays [K]; the rows of these samples
        in the first table, int64 [K]; the largest number of values in a table).

        K is 0 if a run has no table, or its table lacks the column."""
        tables = [table for run in runs if (table := self.table(run)) is not None and column in table.columns]
        if len(tables) < len(runs):
            return [], np.empty(0, dtype=np.int64), 0
        places = [self._places_in(runs[0], run) for run in runs]
        there = [np.where(place >= 0, table.columns[column][place], np.nan) for table, place in zip(tables, places, strict=True)]
        common = np.flatnonzero(~np.isnan(there).any(axis=0))
        most = max(int((~np.isnan(table.columns[column])).sum()) for table in tables)
        return [own[common] for own in there], common, most

    def _places_in(self, first: RunFiles, run: RunFiles) -> np.ndarray:
        """Return the row of each sample of `first` in the table of `run`, int64 [N]; -1 if it is not there. Both runs have a table."""
        if (first, run) not in self._places:
            own, theirs = self.table(first), self.table(run)
            assert own is not None and theirs is not None
            self._places[first, run] = np.array([theirs.rows.get(name, -1) for name in own.rows], dtype=np.int64)
        return self._places[first, run]


def _read_samples(rows: Rows) -> Samples | None:
    """Return the numbers in a table of samples; None if it is empty, or if sample names are not unique. Columns of texts are left out."""
    named = {row["sample"]: i for i, row in enumerate(rows)}
    if not rows or len(named) < len(rows):
        return None
    columns = {}
    for name in rows[0]:
        with contextlib.suppress(ValueError):
            columns[name] = np.array([float(row[name] or math.nan) for row in rows])
    return Samples(named, columns, np.array([int(row["group"]) for row in rows]) if "group" in rows[0] else None)


def _interval(differences: np.ndarray, group: np.ndarray | None) -> tuple[float, float]:
    """Return (lower end, upper end) of the 95 % interval of the mean of `differences`; NaN with fewer than two groups of samples.

    differences: [N], one value per sample. group: [N], number of the group of each sample, such as its observation; None: each sample is a
    group."""
    from linnaeus.metrics.bootstrap import group_sums, intervals

    terms = (differences, np.ones(len(differences)))
    low, high = intervals(*group_sums({"difference": terms}, group, len(differences)))
    return float(low[0]), float(high[0])
