"""Fit the calibration of a model on labelled photographs: the floor of the prior, temperatures and thresholds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from linnaeus.errors import ConfigError, counted
from linnaeus.reporting.terminal.preparation_progress import PreparationProgress
from linnaeus.workloads.taxonomy.images.integrity import NotAnImage
from linnaeus.workloads.taxonomy.observations.components import encode
from linnaeus.workloads.taxonomy.trained.calibrate.calibration_fit import Evidence, fit_temperature, fit_thresholds, is_tuning, one_of_each
from linnaeus.workloads.taxonomy.trained.calibrate.labelled import Labelled
from linnaeus.workloads.taxonomy.trained.calibrate.prior_fit import LEAST_GAIN, floor_likelihoods
from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier
from linnaeus.workloads.taxonomy.trained.probabilities.calibration import Calibration
from linnaeus.workloads.taxonomy.trained.probabilities.class_probabilities import class_log_probs
from linnaeus.workloads.taxonomy.trained.probabilities.familiarity import familiarity
from linnaeus.workloads.taxonomy.trained.probabilities.rollup import NONE, UNKNOWN, Paths, answer_ranks, confident_paths, outcomes

BATCH = 32  # photographs per forward pass
WORKSPACE = 1 << 27  # most log-probabilities in memory while temperatures are fitted: 0.5 GB


def fit(
    model: TrainedClassifier, data: Labelled, precisions: Sequence[float], confidence: float, kept: float
) -> tuple[Calibration, tuple[str, ...]]:
    """Return the calibration fitted on labelled photographs, and lines of text about the prior, about photographs that could not be read,
    and about answers that are not judged.

    `precisions`, `confidence` and `kept`: as in `fit_thresholds`."""
    known = np.flatnonzero(~data.unknown & (data.labels >= 0).any(axis=1))
    group = None if data.group is None else data.group[known]
    data = data.take(known[one_of_each(group, len(known))])
    unlabelled = [rank for rank, column in zip(model.tree.ranks, data.labels.T, strict=True) if not (column >= 0).any()]
    if unlabelled and len(data):
        raise ConfigError(f"no photograph has a label of rank {unlabelled[-1]}, so answers at this rank cannot be judged; give such labels")
    tuning = is_tuning(len(data))
    weighed = _choose_floor(model, data.take(np.flatnonzero(tuning))) if model.prior is not None else []
    temperature = _temperatures(model, data.take(np.flatnonzero(tuning)))
    evidence, read = _evidence(model, data, temperature)
    notes = (*weighed, *((f"{counted(int((~read).sum()), 'photograph')} could not be read",) if not read.all() else ()))
    usable, digest = evidence.take(np.flatnonzero(read)), model.weights.digest
    found = fit_thresholds(usable, tuning[read], digest, temperature, precisions, confidence, kept)
    return found, (*notes, *not_judged(usable, found))


def not_judged(evidence: Evidence, found: Calibration) -> list[str]:
    """Return a line about answers that are finer than the label of their photograph, so that they may be right or wrong; [] without such
    answers."""
    paths, judged = evidence.answered(found.familiar or 0.0), outcomes(evidence.paths, evidence.label)
    ranks = [answer_ranks(paths, one.threshold) for one in found.precisions]
    shares = [float((judged[rank != NONE, rank[rank != NONE]] == UNKNOWN).mean()) for rank in ranks if (rank != NONE).any()]
    most = 100 * max(shares, default=0.0)
    return [f"{most:.1f} % of the answers are finer than the labels, and count neither as right nor as wrong"] if most else []


def _choose_floor(model: TrainedClassifier, data: Labelled) -> list[str]:
    """Set the floor of the model's prior (the least weight of a taxon) to the value under which the labels are most likely. Remove the
    prior from the model if the labels are most likely without a prior.

    Return one line of text about the choice."""
    prior = model.prior
    assert prior is not None
    parts = (
        (model.network_scores(prepared), model.prior_inputs(prepared), torch.from_numpy(data.labels[rows]).to(model.device))
        for _, rows, prepared in batches(model, data)
    )
    found = floor_likelihoods(prior, parts)
    best = max(found, key=lambda floor: found[floor])
    if found[best] - found[1.0] < LEAST_GAIN:
        model.use_prior(None)
        return [
            f"the prior over place and season is not used: the labels of {counted(len(data), 'photograph')} are not more likely with it"
        ]
    prior.floor = best
    gain = f"mean log-likelihood of the labels {found[best]:.3f}, without it {found[1.0]:.3f}"
    return [f"prior over {' and '.join(prior.components)} with floor {best:g}: {gain}"]


def _temperatures(model: TrainedClassifier, data: Labelled) -> list[float]:
    """Return the temperature of each rank under which the labels are most likely; 1.0 without labels or readable photographs. With many
    taxa only the first photographs are used, as many as fit into the memory limit `WORKSPACE`."""
    sizes = model.tree.sizes
    data = data.take(np.arange(min(len(data), max(1, WORKSPACE // sum(sizes)))))
    parts: list[list[Any]] = [[] for _ in sizes]
    for _, rows, prepared in batches(model, data):
        scores = model.scores(prepared)
        label = torch.from_numpy(data.labels[rows]).to(model.device)
        for rank, part in enumerate(parts):
            part.append([found.cpu() for found in scores.choices(rank, label)])
    return [fit_temperature(*map(torch.cat, zip(*part, strict=True))) if part else 1.0 for part in parts]


def _evidence(model: TrainedClassifier, data: Labelled, temperature: Sequence[float]) -> tuple[Evidence, np.ndarray]:
    """Return the results of the network for N photographs, and a mask, bool [N], that is False for photographs that cannot be read.

    `temperature`: one value per rank, as in `Scores.tempered`."""
    shape = data.labels.shape
    path, confidence, true = np.full(shape, -1), np.zeros(shape), np.full(shape, np.nan)
    read, familiar = np.zeros(len(data), dtype=bool), np.zeros(len(data))
    for _, rows, prepared in batches(model, data):
        scores = model.scores(prepared)
        log_probs = scores.tempered(temperature).log_probs()
        found = [class_log_probs(log_p, size).exp() for log_p, size in zip(log_probs, model.tree.sizes, strict=True)]
        familiar[rows], probabilities = familiarity(found).cpu().numpy(), tuple(p.cpu().numpy() for p in found)
        own = confident_paths(probabilities, scores.path().cpu().numpy())
        path[rows], confidence[rows], read[rows] = own.path, own.confidence, True
        for r, probability in enumerate(probabilities):
            label = data.labels[rows, r]
            known = np.flatnonzero(label >= 0)
            true[rows[known], r] = probability[known, label[known]]
    return Evidence(Paths(path, confidence), true, data.labels, familiar), read


def batches(model: TrainedClassifier, data: Labelled) -> Iterator[tuple[int, np.ndarray, Any]]:
    """Yield (first, rows, batch) for each batch. Photographs that cannot be read are left out.

    `first`: position in `data` of the first photograph. `rows`: positions in `data` of the readable photographs, int64 [B]. `batch`: these
    B photographs, normalised."""
    with PreparationProgress("calibrating", len(data), counted(len(data), "photograph")) as progress, torch.inference_mode():
        for first in range(0, len(data), BATCH):
            images, good = [], []
            for row in range(first, min(first + BATCH, len(data))):
                try:
                    images.append(data.read(row))
                    good.append(row)
                except (NotAnImage, OSError):
                    continue
            if good:
                rows = np.array(good)
                yield first, rows, model.preparation(model.batch(images, *encode(data.metadata.take(rows), model.components)))
            progress.add(min(BATCH, len(data) - first))
