"""Compute metrics of groups of photographs: by clade, by known metadata, by number of training photographs of their class, and by the
values of a column of the manifest. The metrics need no further forward pass: they are computed from the stored result of each
photograph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from linnaeus.errors import ConfigError, shorten
from linnaeus.metrics.bootstrap import group_sums, intervals, quotients
from linnaeus.workloads.taxonomy.manifest.tables.column import Column
from linnaeus.workloads.taxonomy.metrics.accuracy import FEW, MANY
from linnaeus.workloads.taxonomy.metrics.sample_record import Samples, area_under_risk_coverage, fractions
from linnaeus.workloads.taxonomy.observations.components import presence
from linnaeus.workloads.taxonomy.trained.calibrate.labelled import LabelRows
from linnaeus.workloads.taxonomy.trained.evaluate.measured import Measured
from linnaeus.workloads.taxonomy.trained.evaluate.tempered import calibration_error
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

MOST = 1000  # largest number of groups of a kind


class Group(NamedTuple):
    """Group of photographs for which metrics are computed. `kind`: "all", a rank, "metadata", "training photos", or the name of a
    column."""

    kind: str
    name: str
    rows: np.ndarray  # bool [N]: True for photographs of the group


def find_parts(measured: Measured, rows: LabelRows, clade: str | None, by: str | None) -> list[Group]:
    """Return the group of all photographs, then the other groups that are not empty.

    `clade`: the rank whose taxa are groups; None: the coarsest rank with two or more labelled taxa. `by`: a column of the manifest whose
    values are groups; None: no column. Raise `ConfigError` for more than `MOST` groups of a kind."""
    everything = Group("all", "all", np.ones(len(rows.records.labels), dtype=bool))
    parts = [everything, *_clades(measured, clade), *_metadata(measured, rows), *_shots(measured)]
    if by is not None:
        parts += _of_column(by, rows.records.columns[by])
    return [part for part in parts if part.rows.any()]


def _clades(measured: Measured, clade: str | None) -> Iterator[Group]:
    tree, labels = measured.model.tree, measured.labels.labels
    several = [rank for r, rank in enumerate(tree.ranks) if len(np.unique(labels[labels[:, r] >= 0, r])) > 1]
    r = tree.rank_index(clade or (several or tree.ranks[-1:])[0])
    found = np.unique(labels[labels[:, r] >= 0, r])
    _check_number(len(found), f"--clade: the labels have {len(found):,} taxa of rank {tree.ranks[r]}", "a coarser rank")
    for c in found.tolist():
        yield Group(tree.ranks[r], tree.names[r][c], labels[:, r] == c)


def _metadata(measured: Measured, rows: LabelRows) -> Iterator[Group]:
    components = measured.model.components
    for component, known in zip(components, presence(rows.records.metadata, components).T, strict=True):
        yield Group("metadata", f"with {component}", known)
        yield Group("metadata", f"without {component}", ~known)


def _shots(measured: Measured) -> Iterator[Group]:
    """Yield groups of photographs by the number of training photographs of their class at the finest rank: more than `MANY`, `FEW` to
    `MANY`, and fewer than `FEW`.

    Yield nothing if the numbers of training photographs are unknown."""
    if measured.training_counts is None:
        return
    label = measured.labels.labels[:, -1]
    seen = np.where(label >= 0, measured.training_counts[-1][label], -1)
    yield Group("training photos", f"more than {MANY}", seen > MANY)
    yield Group("training photos", f"{FEW} to {MANY}", (seen >= FEW) & (seen <= MANY))
    yield Group("training photos", f"fewer than {FEW}", (seen >= 0) & (seen < FEW))


def _of_column(name: str, column: Column) -> Iterator[Group]:
    cells = column.text()
    values = np.unique(cells)
    _check_number(len(values), f"--by: the column {name} has {len(values):,} values", "another column")
    for value in values.tolist():
        yield Group(name, value or "(empty)", cells == value)


def check_clade(clade: str | None, tree: TaxonomyTree) -> None:
    """Raise `ConfigError` if `clade` is neither None nor a rank of the tree."""
    if clade is not None and clade not in tree.ranks:
        raise ConfigError(f"--clade is {shorten(clade)!r}, which is not a rank of the model; choose from {', '.join(tree.ranks)}")


def _check_number(count: int, what: str, other: str) -> None:
    if count > MOST:
        raise ConfigError(f"{what}; at most {MOST:,} are measured, choose {other}")


def part_row(measured: Measured, rows: LabelRows, part: Group) -> dict[str, Any]:
    """Return the row of a group for groups.csv: kind, name, numbers of photographs and observations, and metrics, with intervals for
    most."""
    table, ranks = measured.table, measured.model.tree.ranks
    own = np.flatnonzero(part.rows & table.real)
    group = None if rows.group is None else rows.group[own]
    samples = Samples(measured.record[torch.from_numpy(own)], len(ranks))
    terms = all_fractions(measured, samples, own)
    sums = group_sums(terms, group, len(own)) if len(own) else (np.zeros((0, len(terms))),) * 2
    values = quotients(sums[0].sum(0), sums[1].sum(0))
    low, high = intervals(*sums)
    out: dict[str, Any] = {"kind": part.kind, "name": part.name, "photographs": len(own)}
    out["observations"] = len(own) if group is None else len(np.unique(group))
    out |= {f"{rank}/photographs": int(samples.known[:, r].sum()) for r, rank in enumerate(ranks)}
    for i, name in enumerate(terms):
        out |= {name: float(values[i]), f"{name}_low": float(low[i]), f"{name}_high": float(high[i])}
    known = samples.known[:, -1]
    return out | _ece(measured, samples, own) | {"aurc": area_under_risk_coverage(~samples.right[known, -1], samples.confidence[known])}


def all_fractions(measured: Measured, samples: Samples, own: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return metric -> (numerators [n], denominators [n]) of n photographs. A metric is the sum of its numerators / the sum of its
    denominators.

    `own`: int64 [n], positions of the n photographs in `measured.table`. `samples`: results of the same n photographs. The metrics are
    those of `fractions`, and top-5 accuracy and loss of each rank."""
    terms, table = fractions(measured.model.tree.ranks, samples), measured.table
    for r, rank in enumerate(measured.model.tree.ranks):
        known = samples.known[:, r]
        terms |= {f"{rank}/top5": (table.in_top5[own, r] & known, known), f"{rank}/loss": (table.loss[own, r] * known, known)}
    return terms


def _ece(measured: Measured, samples: Samples, own: np.ndarray) -> dict[str, float]:
    return calibration_error(measured.model.tree, samples.known, measured.table.best_right[own], measured.table.best_log_p[own])
