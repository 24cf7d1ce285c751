"""Measure a calibration on labelled photographs: the calibration error of each rank with its temperature, and for each stated precision the
precision and the share of the answers.

The precision is stated for photographs of taxa that the model has. Answers for other photographs are counted in rows of their own: such an
answer is right if it is a taxon above that of the photograph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from linnaeus.metrics.bootstrap import group_sums, intervals, quotients
from linnaeus.workloads.taxonomy.trained.calibrate.labelled import Matched
from linnaeus.workloads.taxonomy.trained.evaluate.measured import Measured
from linnaeus.workloads.taxonomy.trained.evaluate.tempered import calibration_error
from linnaeus.workloads.taxonomy.trained.rollup import NONE, RIGHT, UNKNOWN, Paths, answer_ranks, outcomes


class Answered(NamedTuple):
    """Photographs whose answers are judged."""

    paths: Paths
    labels: Matched
    chosen: np.ndarray  # bool [N]: read, and with a label
    group: np.ndarray | None  # int64 [N]: observation; None: each photograph is its own


def precision_rows(answered: Answered, thresholds: Mapping[float, float], ranks: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each stated precision: the precision of the answers and their share, with intervals, and their shares at each rank.

    The first rows are for photographs of the model's taxa. If there are photographs of other taxa, a row per precision for these follows.
    `thresholds`: stated precision -> threshold of the rolled-up answers."""
    strange = answered.labels.unknown.any(axis=1)
    label = np.where(answered.labels.unknown, np.iinfo(np.int64).max, answered.labels.labels)  # a class that is never predicted
    judged = outcomes(answered.paths, label)
    rows = []
    for name, kind in (("taxa of the model", ~strange), ("other taxa", strange)):
        own = np.flatnonzero(answered.chosen & kind)
        group = None if answered.group is None else answered.group[own]
        for precision, threshold in thresholds.items() if len(own) else ():
            rank = answer_ranks(Paths(*(values[own] for values in answered.paths)), threshold)
            given = rank != NONE
            result = np.where(given, judged[own, np.maximum(rank, 0)], UNKNOWN)
            terms = {"precision": (result == RIGHT, result != UNKNOWN), "answered": (given, np.ones(len(own)))}
            sums = group_sums(terms, group, len(own))
            values, (low, high) = quotients(sums[0].sum(0), sums[1].sum(0)), intervals(*sums)
            row: dict[str, Any] = {"photographs of": name, "photographs": len(own), "stated": precision}
            for i, term in enumerate(terms):
                row |= {term: float(values[i]), f"{term}_low": float(low[i]), f"{term}_high": float(high[i])}
            rows.append(row | {f"answered/{one}": float((rank == r).mean()) for r, one in enumerate(ranks)})
    return rows


def of_model(measured: Measured, group: np.ndarray | None) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Return `<rank>/ece` with temperatures, and the rows of `precision_rows`; ({}, []) for a model that is not calibrated.

    `group`: int64 [N], as of `Answered`."""
    model, table, tempered = measured.model, measured.table, measured.tempered
    if model.calibration is None:
        return {}, []
    known = table.real[:, None] & (measured.labels.labels >= 0)
    strange = tempered.familiarity < np.float32(model.calibration.familiar or 0.0)
    paths = Paths(np.where(strange[:, None], -1, table.path), tempered.confidence)
    labelled = (measured.labels.labels >= 0).any(axis=1) | measured.labels.unknown.any(axis=1)
    thresholds = {one.precision: one.threshold for one in model.calibration.precisions}
    rows = precision_rows(Answered(paths, measured.labels, table.real & labelled, group), thresholds, model.tree.ranks)
    return calibration_error(model.tree, known, table.best_right, tempered.best_log_p), rows
