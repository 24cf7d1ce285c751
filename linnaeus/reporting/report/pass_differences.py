"""Compute 95 % intervals of the differences between validation passes of a run, paired by sample, from the tables of samples."""

from collections.abc import Sequence

import numpy as np

from linnaeus.reporting.report.run_files import Rows, RunFiles

MOST = 200_000  # samples, above which no intervals are computed; the bootstrap takes about 20 us per sample

Intervals = dict[str, tuple[float, float]]  # metric key of a masked pass -> (lower, upper) end of its difference from the normal pass


def pass_differences(run: RunFiles, passes: Sequence[str]) -> Intervals:
    """Return the 95 % intervals of differences from the normal pass: {metric key of a masked pass, such as `val_mask_meta/species/top1`:
    (lower end, upper end)}.

    Only metrics with a column in the tables of samples are included. Return {} if the normal pass has no table of samples or more than
    `MOST` rows. passes: names of the passes, the normal pass first."""
    normal = run.table("samples")
    found: Intervals = {}
    for name in passes[1:] if 0 < len(normal) <= MOST else ():
        masked = run.table("samples", name.replace("val_ema", "val", 1))
        columns = [column for column in normal[0] if f"{name}/{column}" in run.final]
        found |= {f"{name}/{column}": ends for column, ends in paired_intervals(normal, masked, columns).items()}
    return found


def paired_intervals(first: Rows, second: Rows, columns: Sequence[str]) -> Intervals:
    """Return {column: (lower end, upper end)} of the 95 % interval of the difference of the column's means, `second` minus `first`.

    first, second: tables of samples. Return {} if they are empty, or if they do not have equal samples in the same order. A column is left
    out if fewer than two groups of samples have a number in it in one of the tables. The column `group` has the group; without it, each
    sample is a group."""
    from linnaeus.metrics.bootstrap import difference_intervals, group_sums

    if not columns or not first or [row["sample"] for row in first] != [row["sample"] for row in second]:
        return {}
    group = np.array([int(row["group"]) for row in first]) if "group" in first[0] else None
    sums = [group_sums({column: _terms(rows, column) for column in columns}, group, len(rows)) for rows in (first, second)]
    _, low, high = difference_intervals(sums[0], sums[1])
    ends = zip(columns, low.tolist(), high.tolist(), strict=True)
    return {column: (one, other) for column, one, other in ends if not np.isnan(one)}


def _terms(rows: Rows, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (numerators, denominators) for the mean of `column`, float64 [N] each, one per row: (number, 1), or (0, 0) for a row without a
    number."""
    known = np.array([row[column] != "" for row in rows])
    return np.array([float(row[column] or 0) for row in rows]), known.astype(np.float64)
