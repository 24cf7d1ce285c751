"""Compute rolled-up answers: for each photograph, the finest taxon of the predicted path whose confidence reaches a threshold.

The confidence of a taxon on the path is the smallest of the probabilities of the taxon and its ancestors, so the confidence never increases
towards finer ranks. A head with one distribution over the tree has such probabilities already; heads with a classifier or a temperature per
rank may not.

An answer is right if it is the true taxon or an ancestor of the true taxon. An answer that is finer than the label, and does not contradict
the label, is unknown: it may be right or wrong."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

NONE = -1  # in place of the rank of an answer, if no taxon reaches the threshold
RIGHT, WRONG, UNKNOWN = 0, 1, 2  # outcomes of an answer


class Paths(NamedTuple):
    """Predicted paths of N photographs (a class per rank), with the confidence of each taxon on the path."""

    path: np.ndarray  # int64 [N, R]: predicted class at each rank, coarse to fine; -1: no taxon at this rank
    confidence: np.ndarray  # float64 [N, R], never increasing from left to right; where path is -1, that of the next coarser taxon


def confident_paths(probabilities: tuple[np.ndarray, ...], path: np.ndarray) -> Paths:
    """Return the predicted paths of N photographs with the confidence of each taxon on the path.

    `probabilities`: [N, C_r] per rank. `path`: int64 [N, R], predicted class per rank, -1 for no taxon."""
    columns = [
        np.where(own >= 0, np.take_along_axis(p, np.maximum(own, 0)[:, None], axis=1)[:, 0] if p.shape[1] else 1.0, np.inf)
        for p, own in zip(probabilities, path.T, strict=True)
    ]
    confidence = np.minimum.accumulate(np.stack(columns, axis=1).astype(np.float64), axis=1)
    return Paths(path, np.where(np.isinf(confidence), 1.0, confidence))


def answer_ranks(paths: Paths, threshold: float) -> np.ndarray:
    """Return the rank index of the rolled-up answer of each photograph, int64 [N]; `NONE` for a photograph without an answer.

    The answer is the finest taxon of the path with a confidence of at least `threshold`."""
    reached = (paths.confidence >= threshold) & (paths.path >= 0)
    ranks = paths.path.shape[1]
    return np.where(reached.any(axis=1), ranks - 1 - np.argmax(reached[:, ::-1], axis=1), NONE)


def answered_at(paths: Paths, threshold: float) -> tuple[float, ...]:
    """Return, per rank from coarse to fine, the share of photographs whose rolled-up answer at `threshold` has this rank; zeros if there
    are no photographs."""
    rank = answer_ranks(paths, threshold)
    return tuple(float((rank == r).sum() / max(len(rank), 1)) for r in range(paths.path.shape[1]))


def outcomes(paths: Paths, label: np.ndarray) -> np.ndarray:
    """Judge each taxon of each path as if it were the answer. Return RIGHT, WRONG or UNKNOWN, int8 [N, R].

    `label`: int64 [N, R], -1 where missing. A taxon is WRONG if it, or a coarser taxon of the path, differs from the known label of its
    rank. A taxon that is not WRONG is RIGHT if it equals the label of its rank, or if this label is missing and the next finer taxon of the
    path is RIGHT. All others are UNKNOWN."""
    known = label >= 0
    same = known & (paths.path == label)
    wrong = np.logical_or.accumulate(known & (paths.path >= 0) & ~same, axis=1)
    right = same.copy()
    for r in range(label.shape[1] - 2, -1, -1):
        right[:, r] |= ~known[:, r] & right[:, r + 1]
    return np.where(wrong, WRONG, np.where(right, RIGHT, UNKNOWN)).astype(np.int8)
