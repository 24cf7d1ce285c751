"""Compare two models on the same photographs: differences of metrics with intervals, and photographs on which the models disagree.

A metric at a rank is computed over the readable photographs whose label at this rank is a taxon of both models. The bootstrap draws the
same observations for both models, so that variation common to both models does not widen the intervals."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linnaeus.errors import ConfigError
from linnaeus.metrics.bootstrap import difference_intervals, group_sums, quotients
from linnaeus.workloads.taxonomy.metrics.sample_record import Samples
from linnaeus.workloads.taxonomy.trained.calibrate.labelled import LabelRows, classes_of
from linnaeus.workloads.taxonomy.trained.evaluate.measured import Measured
from linnaeus.workloads.taxonomy.trained.evaluate.paired_bins import expected_calibration_error, macro, paired
from linnaeus.workloads.taxonomy.trained.evaluate.photograph_groups import all_fractions
from linnaeus.workloads.taxonomy.trained.restrictions.taxon_index import TaxonIndex

KEYS = ("first", "other", "difference", "low", "high")  # cells of a difference


class Compared(NamedTuple):
    """Comparison of another model with the first model: differences of metrics, and photographs on which the predicted taxa differ."""

    name: str  # of the other model
    photographs: int  # number of photographs that were read for both
    differences: list[dict[str, Any]]  # metric, both values, other minus first, and the ends of its interval
    disagreements: list[dict[str, Any]]  # a row for each photograph with different predicted taxa


def compare(first: Measured, other: Measured, rows: LabelRows) -> Compared:
    """Return the comparison of `other` with `first`. Raise `ConfigError` if the models have no rank in common."""
    ranks = [rank for rank in first.model.tree.ranks if rank in other.model.tree.ranks]
    if not ranks:
        raise ConfigError(f"--compare: {other.name} has none of the ranks {', '.join(first.model.tree.ranks)}")
    read = np.flatnonzero(first.table.real & other.table.real)
    terms = _terms(first, other, read, ranks)
    sums = [group_sums(own, None if rows.group is None else rows.group[read], len(read)) for own in terms]
    names = [*terms[0]]
    values = [quotients(numerator.sum(0), denominator.sum(0)) for numerator, denominator in sums]
    columns = [*values, *difference_intervals(*sums)] if len(read) else [np.full(len(names), np.nan)] * 5
    differences = [
        {"metric": name} | {key: float(column[i]) for key, column in zip(KEYS, columns, strict=True)} for i, name in enumerate(names)
    ]
    differences += _binned_differences(first, other, rows, read, ranks)
    return Compared(other.name, len(read), differences, _disagreements(first, other, rows, read, ranks))


def _binned_differences(first: Measured, other: Measured, rows: LabelRows, read: np.ndarray, ranks: list[str]) -> list[dict[str, Any]]:
    """Return rows for two metrics of each rank, `macro_top1` (mean accuracy over classes) and `ece` (calibration error): values and
    difference.

    `read`: positions of the photographs that were read for both models. `ranks`: ranks that both models have."""
    found = []
    for rank in ranks:
        places = [one.model.tree.rank_index(rank) for one in (first, other)]
        labels = [one.labels.labels[read, r] for one, r in zip((first, other), places, strict=True)]
        own = (labels[0] >= 0) & (labels[1] >= 0)
        chosen, group = read[own], None if rows.group is None else rows.group[read[own]]
        tables = [(one.table, r, label[own]) for one, r, label in zip((first, other), places, labels, strict=True)]
        kinds = {
            "macro_top1": [macro(label, table.path[chosen, r] == label) for table, r, label in tables],
            "ece": [expected_calibration_error(table.best_right[chosen, r], table.best_log_p[chosen, r]) for table, r, _ in tables],
        }
        for name, pair in kinds.items():
            found.append({"metric": f"{rank}/{name}"} | dict(zip(KEYS, paired(pair[0], pair[1], group), strict=True)))
    return found


def _terms(first: Measured, other: Measured, read: np.ndarray, ranks: list[str]) -> list[dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Return, for each of the two models, a dict metric -> (numerators, denominators). Each array has a value per photograph in `read`.

    If the ranks of the models differ, only metrics of a single common rank are returned."""
    samples = [Samples(one.record[read], len(one.model.tree.ranks)) for one in (first, other)]
    places = [[one.model.tree.rank_index(rank) for rank in ranks] for one in (first, other)]
    both = samples[0].known[:, places[0]] & samples[1].known[:, places[1]]
    for own, place in zip(samples, places, strict=True):  # columns of other ranks are not compared
        own.known[:, place] = both
        own.right &= own.known
        own.height = np.where(own.known[:, -1], own.height, 0)
    alike = first.model.tree.ranks == other.model.tree.ranks
    found = [all_fractions(one, own, read) for one, own in zip((first, other), samples, strict=True)]
    chosen = [name for name in found[0] if (alike if "/" not in name else name.split("/")[0] in ranks)]
    return [{name: terms[name] for name in chosen} for terms in found]


def _disagreements(first: Measured, other: Measured, rows: LabelRows, read: np.ndarray, ranks: list[str]) -> list[dict[str, Any]]:
    """Return a row for each photograph with different predicted taxa: the taxa of both models at the coarsest rank where these taxa differ.

    `read`: positions of the photographs that were read for both models. `ranks`: ranks that both models have."""
    trees = [one.model.tree for one in (first, other)]
    places = [[tree.rank_index(rank) for rank in ranks] for tree in trees]
    own, theirs = (one.table.path[read][:, place] for one, place in zip((first, other), places, strict=True))
    index = TaxonIndex(trees[0])
    translated = np.stack([_translated(theirs[:, i], classes_of(trees[1], index, rank)) for i, rank in enumerate(ranks)], 1)
    differs = translated != own
    found = []
    for n in np.flatnonzero(differs.any(axis=1)).tolist():
        i, row = int(np.argmax(differs[n])), int(read[n])
        cells: dict[str, Any] = {"photograph": rows.records.files.names[row], "rank": ranks[i], "label": label_of(rows, row, ranks[i])}
        for key, one, place in zip(("first", "other"), (first, other), places, strict=True):
            cells |= {key: _name(one, row, place[i]), f"{key}_probability": probability(one, row, place[i]), f"{key}_right": None}
            if one.labels.labels[row, place[i]] >= 0:
                cells[f"{key}_right"] = int(one.table.path[row, place[i]] == one.labels.labels[row, place[i]])
        found.append({"model": other.name} | cells)
    return found


def _translated(classes: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Translate `classes` of the other tree to classes of the first tree: -1 for no class, -2 for a taxon that the first tree does not
    have.

    `number`: class of the other tree -> class of the first tree, negative for no class."""
    return np.where(classes < 0, -1, np.where(number[classes] < 0, -2, number[classes]))


def label_of(rows: LabelRows, row: int, rank: str) -> str | None:
    """Return the name of the label of photograph `row` at a rank, even if the model does not have this taxon; None if the label is
    missing."""
    tree = rows.records.tree
    c = int(rows.records.labels[row, tree.rank_index(rank)]) if rank in tree.ranks else -1
    return tree.names[tree.rank_index(rank)][c] if c >= 0 else None


def _name(measured: Measured, row: int, r: int) -> str | None:
    c = int(measured.table.path[row, r])
    return measured.model.tree.names[r][c] if c >= 0 else None


def probability(measured: Measured, row: int, r: int) -> float | None:
    """Return the probability of the taxon predicted for photograph `row` at rank index `r`; None if no taxon is predicted."""
    return float(np.exp(measured.table.path_log_p[row, r])) if measured.table.path[row, r] >= 0 else None
