"""Thresholds for a stated precision, from photographs that trained nothing.

`with_confidence`: of all thresholds that could be drawn, at most a share `1 - confidence` has a precision among its answers below the
stated one. Candidates are tested one after the other, from the safest downwards, until one fails (fixed sequence testing; Angelopoulos et
al. 2021, "Learn then test"). A test is exact: given the number of answers, the wrong ones are binomially distributed. Candidates and their
order come from other photographs than the tests.

`on_average`: the mean over such draws of the share of photographs whose answer is right, or that get no answer, is at least the stated
precision. The threshold is the ceil((n + 1) x precision)-th smallest of the least thresholds at which each photograph has no wrong answer
(split conformal prediction; Vovk et al. 2005). An interpolated quantile is below it and misses the precision.

Both need photographs that are exchangeable with later ones: one of each observation, since those of one observation resemble each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from linnaeus.workloads.taxonomy.trained.rollup import NONE, UNKNOWN, WRONG, Paths, answer_ranks, outcomes

CANDIDATES = 400
NEVER = 2.0  # a threshold that no confidence reaches: no answers


class Counts(NamedTuple):
    """The answers at a threshold."""

    answered: int  # those that are known to be right or wrong
    wrong: int


def counts(paths: Paths, judged: np.ndarray, threshold: float) -> Counts:
    """Return the counts at a threshold. `judged`: of `outcomes`, int8 [N, R]. Answers of unknown correctness are left out."""
    rank = answer_ranks(paths, threshold)
    given = np.flatnonzero(rank != NONE)
    result = judged[given, rank[given]]
    return Counts(int((result != UNKNOWN).sum()), int((result == WRONG).sum()))


def with_confidence(tuning: Paths, tuning_label: np.ndarray, paths: Paths, label: np.ndarray, precision: float, confidence: float) -> float:
    """Return the least threshold whose precision among answers is at least `precision` with `confidence`; NEVER if none is found.

    tuning, tuning_label: photographs for the choice of the candidates. paths, label: others, for the tests. Labels are int64 [N, R]."""
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
    """Return distinct confidences of the paths at equal steps of their ranks, in descending order."""
    found = np.unique(paths.confidence[paths.path >= 0])
    steps = np.unique(np.linspace(0, len(found) - 1, min(CANDIDATES, len(found))).astype(int))
    return found[steps][::-1].tolist()


def p_value(found: Counts, precision: float) -> float:
    """Return the probability of at most `found.wrong` wrong answers if the precision were just the stated one; 1 without answers."""
    return binomial_cdf(found.wrong, found.answered, 1 - precision) if found.answered else 1.0


def binomial_cdf(k: int, n: int, p: float) -> float:
    """Return P(X <= k) for X binomial with n trials of probability p in (0, 1)."""
    logs = [
        math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) + i * math.log(p) + (n - i) * math.log1p(-p) for i in range(k + 1)
    ]
    top = max(logs)
    return min(1.0, math.exp(top) * math.fsum(math.exp(value - top) for value in logs))


def on_average(paths: Paths, label: np.ndarray, precision: float) -> float:
    """Return the threshold whose share of photographs without a wrong answer is at least `precision` on average; NEVER if there are too
    few photographs. `label`: int64 [N, R]; photographs whose label is coarser than their path are judged as far as it is known."""
    scores = np.sort(least_thresholds(paths, outcomes(paths, label)))
    number = math.ceil((len(scores) + 1) * precision)
    return NEVER if number > len(scores) else float(scores[number - 1])


def least_thresholds(paths: Paths, judged: np.ndarray) -> np.ndarray:
    """Return the least threshold at which a photograph has no wrong answer, float64 [N]: just above the confidence of its coarsest wrong
    taxon; 0 if no taxon is wrong."""
    wrong = judged == WRONG
    first = np.argmax(wrong, axis=1)
    confidence = np.nextafter(paths.confidence[np.arange(len(wrong)), first], np.inf)
    return np.where(wrong.any(axis=1), confidence, 0.0)


def set_threshold(probability: Sequence[float] | np.ndarray, coverage: float) -> float:
    """Return the least probability with which a class is in the prediction set of a rank.

    On average the set then contains the true class with probability `coverage`. `probability`: [n], of the true class of each photograph.
    With too few photographs the threshold is 0, so that every class is in the set."""
    found = np.sort(np.asarray(probability, dtype=np.float64))[::-1]
    number = math.ceil((len(found) + 1) * coverage)
    return 0.0 if number > len(found) else float(found[number - 1])


def precision_of(paths: Paths, label: np.ndarray, threshold: float) -> tuple[float, float]:
    """Return the precision among answers whose correctness is known, and the share of photographs with an answer; NaN for neither."""
    found = counts(paths, outcomes(paths, label), threshold)
    rank = answer_ranks(paths, threshold)
    return (1 - found.wrong / found.answered if found.answered else math.nan), float((rank != NONE).mean()) if len(rank) else math.nan
