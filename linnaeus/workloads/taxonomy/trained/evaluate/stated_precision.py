"""Measure a calibration on labelled photographs: the calibration error of each rank after the temperatures, and, for
each precision that the calibration promises, the measured precision of the rolled-up answers and the share of photographs that have one.

A stated precision is for photographs of taxa that the model has. Answers for other photographs, and for photographs of taxa that a
restriction excludes, are counted in separate rows: such an answer is right if it is an ancestor of the true taxon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from linnaeus.metrics.bootstrap import group_sums, intervals, quotients
from linnaeus.workloads.taxonomy.trained.calibrate.labelled import Matched
from linnaeus.workloads.taxonomy.trained.evaluate.measured import Measured
from linnaeus.workloads.taxonomy.trained.evaluate.tempered import calibration_error
from linnaeus.workloads.taxonomy.trained.probabilities.rollup import NONE, RIGHT, UNKNOWN, Paths, answer_ranks, outcomes


class Answered(NamedTuple):
    """Predicted paths and labels of N photographs, from which the rolled-up answers are judged."""

    paths: Paths
    labels: Matched
    chosen: np.ndarray  # bool [N]: read, and with a label
    group: np.ndarray | None  # int64 [N]: observation; None: each photograph is its own


def precision_rows(answered: Answered, thresholds: Mapping[float, float], ranks: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each stated precision: measured precision and share of the rolled-up answers, with intervals, and the share at each
    rank.

    `thresholds`: stated precision -> threshold of the answers. The rows are for photographs of the model's taxa, without those that the
    restriction excludes. If some photographs are of excluded or of other taxa, further rows for these photographs follow, one per
    precision."""
    strange = answered.labels.unknown.any(axis=1)
    excluded = answered.labels.excluded.any(axis=1) & ~strange
    label = np.where(answered.labels.unscored, np.iinfo(np.int64).max, answered.labels.labels)  # a class that is never predicted
    judged = outcomes(answered.paths, label)
    rows = []
    for name, kind in (("taxa of the model", ~strange & ~excluded), ("excluded taxa", excluded), ("other taxa", strange)):
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
    """Return a dict of the calibration errors `<rank>/ece` after the temperatures, and the rows of `precision_rows`.

    Return ({}, []) if the model is not calibrated. `group`: int64 [N], observation of each photograph; None: each is its own
    observation."""
    model, table, tempered = measured.model, measured.table, measured.tempered
    if model.calibration is None:
        return {}, []
    known = table.real[:, None] & (measured.labels.labels >= 0)
    strange = tempered.familiarity < np.float32(model.calibration.familiar or 0.0)
    paths = Paths(np.where(strange[:, None], -1, table.path), tempered.confidence)
    labelled = ((measured.labels.labels >= 0) | measured.labels.unscored).any(axis=1)
    thresholds = {one.precision: one.threshold for one in model.calibration.precisions}
    rows = precision_rows(Answered(paths, measured.labels, table.real & labelled, group), thresholds, model.tree.ranks)
    best_right = known & (tempered.best == measured.labels.labels)
    return calibration_error(model.tree, known, best_right, tempered.best_log_p), rows
