"""Rolled-up answers: the finest taxon of the predicted path whose confidence reaches a threshold.

The confidence of a taxon on the path is the least probability from the coarsest rank to its own, so that it never grows with depth. Heads
of one distribution over the tree have such probabilities anyway; those with a classifier or a temperature per rank need not.

An answer is right if it is the truth or an ancestor of it. Whether an answer that is finer than a known label is right is unknown.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

NONE = -1  # rank of the answer where no taxon reaches the threshold
RIGHT, WRONG, UNKNOWN = 0, 1, 2  # of an answer


class Paths(NamedTuple):
    """Predicted paths of N photographs."""

    path: np.ndarray  # int64 [N, R]: class of each rank, -1 for none
    confidence: np.ndarray  # float64 [N, R], not growing from left to right; that of the nearest coarser taxon where there is none


def confident_paths(probabilities: tuple[np.ndarray, ...], path: np.ndarray) -> Paths:
    """Return the paths with the confidence of each of their taxa. `probabilities`: per rank [N, C_r]. `path`: int64 [N, R]."""
    columns = [
        np.where(own >= 0, np.take_along_axis(p, np.maximum(own, 0)[:, None], axis=1)[:, 0] if p.shape[1] else 1.0, np.inf)
        for p, own in zip(probabilities, path.T, strict=True)
    ]
    confidence = np.minimum.accumulate(np.stack(columns, axis=1).astype(np.float64), axis=1)
    return Paths(path, np.where(np.isinf(confidence), 1.0, confidence))


def answer_ranks(paths: Paths, threshold: float) -> np.ndarray:
    """Return the rank of the finest taxon of each path whose confidence is at least `threshold`, int64 [N]; NONE if none is."""
    reached = (paths.confidence >= threshold) & (paths.path >= 0)
    ranks = paths.path.shape[1]
    return np.where(reached.any(axis=1), ranks - 1 - np.argmax(reached[:, ::-1], axis=1), NONE)


def outcomes(paths: Paths, label: np.ndarray) -> np.ndarray:
    """Return RIGHT, WRONG or UNKNOWN for each taxon of each path as the answer, int8 [N, R]. `label`: int64 [N, R], -1 where unknown.

    A taxon is right if it is the label at its rank, and wrong if it or a coarser taxon is not the label. Where its rank has no label, it is
    right if the next finer label is right, otherwise unknown."""
    known = label >= 0
    same = known & (paths.path == label)
    wrong = np.logical_or.accumulate(known & (paths.path >= 0) & ~same, axis=1)
    right = same.copy()
    for r in range(label.shape[1] - 2, -1, -1):
        right[:, r] |= ~known[:, r] & right[:, r + 1]
    return np.where(wrong, WRONG, np.where(right, RIGHT, UNKNOWN)).astype(np.int8)
