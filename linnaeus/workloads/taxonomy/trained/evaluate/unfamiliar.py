"""Measure the answer "none of these": how well familiarity separates photographs of the model's taxa from other photographs (AUROC).

The other photographs are of taxa that the model does not have, grouped by the coarsest rank at which the model does not have the taxon, or
are in a folder of photographs without organisms."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.observations.components import encode
from linnaeus.workloads.taxonomy.trained.batches.reading_ahead import read_batches
from linnaeus.workloads.taxonomy.trained.calibrate.labelled import LabelRows
from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier
from linnaeus.workloads.taxonomy.trained.evaluate.measured import Measured, Settings
from linnaeus.workloads.taxonomy.trained.photographs.photograph_list import Inputs, from_paths
from linnaeus.workloads.taxonomy.trained.probabilities.familiarity import auroc


class Strangers(NamedTuple):
    """Results for photographs without organisms: the familiarity of the M readable photographs, and (name, reason) of each unreadable
    photograph."""

    familiarity: np.ndarray  # float [M]
    unreadable: list[tuple[str, str]]


def folder_inputs(folder: str) -> Inputs:
    """Return the photographs in the folder of --outside. Raise `ConfigError` if the folder has no photographs."""
    try:
        return from_paths([folder], {})
    except ConfigError as error:
        raise ConfigError(str(error).replace("PHOTOS", "--outside", 1)) from None


def strangers(model: TrainedClassifier, inputs: Inputs, settings: Settings) -> Strangers:
    """Return the familiarity of the photographs in `inputs`, which show no organism and have no metadata."""
    found, unreadable = [np.zeros(0)], list[tuple[str, str]]()
    for read in read_batches(model, inputs, settings.batch_size, settings.threads, "evaluating"):
        unreadable += [(name, error) for name, error in zip(read.names, read.errors, strict=True) if error is not None]
        if read.good:
            found.append(model.scored(read.images, *encode(read.metadata, model.components)).familiarity)
    return Strangers(np.concatenate(found), unreadable)


def unfamiliar_rows(measured: Measured, rows: LabelRows, others: Strangers | None) -> list[dict[str, Any]]:
    """Return a row for each kind of photographs: AUROC against the model's taxa with its interval, and the share with the answer "none of
    these".

    The first row is for photographs of the model's taxa and has no AUROC. Taxa that a restriction excludes are taxa of the model:
    familiarity is that among all taxa. `others`: photographs without organisms; None: none were
    given."""
    unknown, real = measured.labels.unknown, measured.table.real
    familiarity, group = measured.tempered.familiarity, np.arange(len(real)) if rows.group is None else rows.group
    inside = real & ~unknown.any(axis=1) & ((measured.labels.labels >= 0) | measured.labels.excluded).any(axis=1)
    kinds = [("taxa of the model", familiarity[inside], group[inside])]
    coarsest = np.where(unknown.any(axis=1), np.argmax(unknown, axis=1), -1)
    for r in reversed(range(unknown.shape[1])):
        chosen = real & (coarsest == r)
        if chosen.any():
            kinds.append((f"unseen {measured.model.tree.ranks[r]}", familiarity[chosen], group[chosen]))
    if others is not None:
        kinds.append(("no organism", others.familiarity, np.arange(len(others.familiarity))))
    least = None if measured.model.calibration is None else measured.model.calibration.familiar
    found = []
    for name, values, own in kinds:
        area = auroc(familiarity[inside], values, (group[inside], own))
        rejected = float("nan") if least is None or not len(values) else float((values < np.float32(least)).mean())
        first = name == kinds[0][0]
        cells = {"auroc": float("nan") if first else area.value, "auroc_low": area.low, "auroc_high": area.high}
        cells |= {"auroc_low": float("nan"), "auroc_high": float("nan")} if first else {}
        found.append({"photographs of": name, "photographs": len(values), **cells, "none of these": rejected})
    return found
