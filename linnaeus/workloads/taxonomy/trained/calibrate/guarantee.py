"""Compute the thresholds of rolled-up answers that guarantee a precision, from photographs that were not used for training.

`with_confidence`: with probability `confidence` over the draw of the photographs, the answers at the threshold have at least the given
precision. Candidates are tested one after the other, from the safest downwards, until one fails (fixed sequence testing; Angelopoulos et
al. 2021, "Learn then test"). The test is exact: given the number of answers, the number of wrong ones is binomial. The candidates and
their order are chosen on other photographs than those of the tests.

`on_average`: averaged over the draw of the photographs, the share of photographs without a wrong answer is at least the given precision.
For each photograph there is a least threshold at which it has no wrong answer. The result is the ceil((n + 1) x precision)-th smallest of
these (split conformal prediction; Vovk et al. 2005). An interpolated quantile would be smaller, and would miss the precision.

Both assume that the photographs are exchangeable with later ones. This needs one photograph per observation, since photographs of the same
observation resemble each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from linnaeus.workloads.taxonomy.trained.rollup import NONE, UNKNOWN, WRONG, Paths, answer_ranks, outcomes

CANDIDATES = 400  # most thresholds that are tested
NEVER = 2.0  # threshold above all confidences: no answers


class Counts(NamedTuple):
    """Numbers of answers at a threshold."""

    answered: int  # answers that are known to be right or wrong
    wrong: int  # answers that are wrong


def counts(paths: Paths, judged: np.ndarray, threshold: float) -> Counts:
    """Return the numbers of answers and of wrong answers at a threshold. `judged`: int8 [N, R], as `outcomes` returns.

    Answers that may be right or wrong (`UNKNOWN`) are left out."""
    rank = answer_ranks(paths, threshold)
    given = np.flatnonzero(rank != NONE)
    result = judged[given, rank[given]]
    return Counts(int((result != UNKNOWN).sum()), int((result == WRONG).sum()))


def with_confidence(tuning: Paths, tuning_label: np.ndarray, paths: Paths, label: np.ndarray, precision: float, confidence: float) -> float:
    """Return the lowest threshold whose answers pass the tests for `precision` at `confidence`; `NEVER` if no threshold passes.

    `tuning`, `tuning_label`: photographs on which the candidates are chosen. `paths`, `label`: other photographs, on which they are tested.
    Labels are int64 [N, R]."""
    candidates = _candidates(tuning)
    own = outcomes(tuning, tuning_label)
    p_values = [p_value(counts(tuning, own, t), precision) for t in candidates]
    if not candidates or min(p_values) >= 1:
        return NEVER
    safest = int(np.argmin(p_values))
    judged, chosen = outcomes(paths, label), NEVER
    for threshold in candidates[safest:]:
        if p_value(counts(paths, judged, threshold), precision) > 1 - confidence:
            break
        chosen = threshold
    return chosen


def _candidates(paths: Paths) -> list[float]:
    """Return at most `CANDIDATES` thresholds in descending order: evenly spaced quantiles of the distinct confidences of the paths."""
    found = np.unique(paths.confidence[paths.path >= 0])
    steps = np.unique(np.linspace(0, len(found) - 1, min(CANDIDATES, len(found))).astype(int))
    return found[steps][::-1].tolist()


def p_value(found: Counts, precision: float) -> float:
    """Return the probability of at most `found.wrong` wrong answers if the true precision were exactly `precision`; 1 without answers."""
    return binomial_cdf(found.wrong, found.answered, 1 - precision) if found.answered else 1.0


def binomial_cdf(k: int, n: int, p: float) -> float:
    """Return P(X <= k) for X binomial with n trials of probability p in (0, 1)."""
    logs = [
        math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) + i * math.log(p) + (n - i) * math.log1p(-p) for i in range(k + 1)
    ]
    top = max(logs)
    return min(1.0, math.exp(top) * math.fsum(math.exp(value - top) for value in logs))


def on_average(paths: Paths, label: np.ndarray, precision: float) -> float:
    """Return the threshold at which the share of photographs without a wrong answer is on average at least `precision`.

    Return `NEVER` if there are too few photographs. `label`: int64 [N, R], -1 where missing. Taxa at ranks with a missing label do not
    count as wrong unless a coarser taxon is wrong."""
    scores = np.sort(least_thresholds(paths, outcomes(paths, label)))
    number = math.ceil((len(scores) + 1) * precision)
    return NEVER if number > len(scores) else float(scores[number - 1])


def least_thresholds(paths: Paths, judged: np.ndarray) -> np.ndarray:
    """Return the least threshold at which each of N photographs has no wrong answer, float64 [N].

    This is the next float above the confidence of the coarsest wrong taxon, or 0 if no taxon is wrong. `judged`: as `outcomes` returns."""
    wrong = judged == WRONG
    first = np.argmax(wrong, axis=1)
    confidence = np.nextafter(paths.confidence[np.arange(len(wrong)), first], np.inf)
    return np.where(wrong.any(axis=1), confidence, 0.0)


def set_threshold(probability: Sequence[float] | np.ndarray, coverage: float) -> float:
    """Return the threshold of prediction sets: a set has all classes of a rank with at least this probability.

    On average a set then contains the true class with probability `coverage`. `probability`: [n], probability of the true class of each
    photograph. With too few photographs the threshold is 0, so that every class is in the set."""
    found = np.sort(np.asarray(probability, dtype=np.float64))[::-1]
    number = math.ceil((len(found) + 1) * coverage)
    return 0.0 if number > len(found) else float(found[number - 1])


def precision_of(paths: Paths, label: np.ndarray, threshold: float) -> tuple[float, float]:
    """Return the precision of the answers that are known to be right or wrong, and the share of photographs with an answer.

    The precision is NaN without such answers, the share is NaN without photographs."""
    found = counts(paths, outcomes(paths, label), threshold)
    rank = answer_ranks(paths, threshold)
    return (1 - found.wrong / found.answered if found.answered else math.nan), float((rank != NONE).mean()) if len(rank) else math.nan
