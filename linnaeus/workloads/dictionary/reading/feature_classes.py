"""Find for each class of the samples, such as a taxon, the feature that detects it best.

A detector is a feature with a threshold. It predicts its class for a sample if the maximum activity over the places (tokens or pixels) is
above the threshold. If samples have few tokens, such as one class token for each taxonomic rank, a detector uses the activity at a single
token instead. For each class, the feature, token and threshold with the best F1 on training samples are chosen. Precision, recall and F1
are then measured on validation samples. Candidate thresholds are 0 and quantiles of the activities above 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

QUANTILES = np.linspace(0.0, 0.95, 20)  # of the activities above 0, as candidate thresholds
COLUMNS = ("rank", "taxon", "feature", "place", "threshold", "training_rows", "validation_rows", "precision", "recall", "f1")


class Detector(NamedTuple):
    """Best detector of one class: a feature with a threshold.

    group: group of outputs, such as a taxonomic rank. name: name of the class. place: number of the token whose activity is used, from 1;
    None: the maximum over all places. training_rows, validation_rows: number of samples of the class in the training and in the validation
    samples.

    precision, recall, f1: on validation samples. Precision is NaN if the detector never fires; recall and F1 are NaN without samples of the
    class."""

    group: str
    name: str
    feature: int
    place: int | None
    threshold: float
    training_rows: int
    validation_rows: int
    precision: float
    recall: float
    f1: float

    def row(self) -> dict[str, Any]:
        """Return {column: value} for this detector's row in feature_taxa.csv. The column `rank` is `group`, the column `taxon` is
        `name`."""
        return dict(zip(COLUMNS, self, strict=True))


def detectors(
    training: tuple[np.ndarray, Mapping[str, np.ndarray]],
    validation: tuple[np.ndarray, Mapping[str, np.ndarray]],
    names: Mapping[str, Sequence[str]],
) -> list[Detector]:
    """Return the best detector of each class of each group, in descending order of the validation F1, NaN last.

    Classes without training samples are left out. training, validation: (peaks, labels) of S samples. peaks: activities, float32 [S, P, F];
    P is 1 if they are maxima over all places. labels: group -> class of each sample, int64 [S], -1 if unknown. names: group -> names of its
    classes."""
    found = [
        detector
        for group in training[1]
        for detector in _of_group(group, (training[0], training[1][group]), (validation[0], validation[1][group]), names[group])
    ]
    return sorted(found, key=lambda one: (not one.f1 >= 0, -one.f1 if one.f1 >= 0 else 0.0))


def _of_group(
    group: str, training: tuple[np.ndarray, np.ndarray], validation: tuple[np.ndarray, np.ndarray], names: Sequence[str]
) -> list[Detector]:
    (peaks, labels), (held, truth) = _known(*training), _known(*validation)
    if not len(labels):
        return []
    places, features = training[0].shape[1:]
    counts, best_f1 = np.bincount(labels, minlength=len(names)), np.full(len(names), -1.0)
    feature, threshold = np.zeros(len(names), np.int64), np.zeros(len(names))
    one_hot = np.zeros((len(names), len(labels)), np.float32)
    one_hot[labels, np.arange(len(labels))] = 1
    for limits in _thresholds(peaks):
        yes = (peaks > limits).astype(np.float32)
        f1 = 2 * (one_hot @ yes) / (yes.sum(0) + counts[:, None]).clip(min=1)  # [C, F]
        best = f1.argmax(1)
        value = f1[np.arange(len(names)), best]
        better = value > best_f1
        best_f1, feature = np.where(better, value, best_f1), np.where(better, best, feature)
        threshold = np.where(better, limits[best], threshold)
    found = []
    for i in np.flatnonzero(counts).tolist():
        yes, own = held[:, feature[i]] > threshold[i], truth == i
        hits, said, real = int((yes & own).sum()), int(yes.sum()), int(own.sum())
        scores = (hits / said if said else np.nan, hits / real if real else np.nan, 2 * hits / (said + real) if real else np.nan)
        place = int(feature[i]) // features + 1 if places > 1 else None
        found.append(Detector(group, names[i], int(feature[i]) % features, place, float(threshold[i]), int(counts[i]), real, *scores))
    return found


def _known(peaks: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (activities [N, P x F], classes [N]) of the N samples whose class is known.

    peaks: activities [S, P, F] of S samples. labels: int64 [S], class of each sample, -1 if unknown."""
    known = labels >= 0
    return peaks[known].reshape(int(known.sum()), peaks.shape[1] * peaks.shape[2]), labels[known]


def _thresholds(peaks: np.ndarray) -> np.ndarray:
    """Return the candidate thresholds of each column of `peaks` [N, K]: float32 [Q + 1, K].

    The first is 0; the others are the Q quantiles `QUANTILES` of the activities above 0 in the column."""
    ordered = np.sort(peaks, axis=0)
    first = (ordered <= 0).sum(0)  # number of samples without activity
    rows = first + np.floor(QUANTILES[:, None] * (len(peaks) - first)).astype(np.int64)
    quantiles = np.take_along_axis(ordered, rows.clip(max=len(peaks) - 1), axis=0)
    return np.concatenate([np.zeros((1, peaks.shape[1]), np.float32), quantiles])
