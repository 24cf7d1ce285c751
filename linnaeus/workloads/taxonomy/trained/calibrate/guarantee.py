"""Compute the thresholds of rolled-up answers that guarantee a precision, from photographs that were not used for training.

`with_confidence`: with probability `confidence` over the draw of the photographs, the answers at the threshold have at least the given
precision. Candidates for the threshold are tested in descending order, from a safe candidate on, until a test fails (fixed sequence
testing; Angelopoulos et al. 2021, "Learn then test"). Each test is exact: given the number of answers, the number of wrong answers is
binomial. The candidates and the safe candidate are chosen on photographs that are not used in the tests. There are many candidates, so the
steps between them are small.

`on_average`: averaged over the draw of the photographs, the share of photographs without a wrong answer is at least the given precision.
For each photograph there is a least threshold at which it has no wrong answer. The result is the ceil((n + 1) x precision)-th smallest of
these n thresholds (split conformal prediction; Vovk et al. 2005). An interpolated quantile would be smaller, and would miss the precision.

Both functions assume that the photographs are exchangeable with later photographs. This needs one photograph per observation, since
photographs of the same observation resemble each other."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from linnaeus.workloads.taxonomy.trained.probabilities.rollup import NONE, UNKNOWN, WRONG, Paths, answer_ranks, outcomes

CANDIDATES = 4000  # thresholds that may be tested
SAFE = 2.5  # standard errors between the stated precision and that of the first candidate; then nearly every first test succeeds
NEVER = 2.0  # threshold above all confidences: no answers


@dataclass(frozen=True)
class AnswerCounts:
    """Sorted confidences of the taxa on paths, from which `at` counts the rolled-up answers at a threshold.

    At the threshold t a taxon is the answer if its confidence is at least t, and the confidence of the next finer taxon of the path is
    below t."""

    known: tuple[np.ndarray, np.ndarray]  # sorted confidences of these taxa, and of the next finer ones; right or wrong answers
    wrong: tuple[np.ndarray, np.ndarray]  # the same, of wrong answers

    @classmethod
    def of(cls, paths: Paths, label: np.ndarray) -> AnswerCounts:
        """Return the `AnswerCounts` of N paths and their labels, int64 [N, R]. Leave out answers that may be right or wrong (UNKNOWN)."""
        judged, named = outcomes(paths, label), paths.path >= 0
        finer, following = np.empty_like(paths.confidence), np.full(len(label), -np.inf)
        for r in range(label.shape[1] - 1, -1, -1):
            finer[:, r] = following
            following = np.where(named[:, r], paths.confidence[:, r], following)
        chosen = (named & (judged != UNKNOWN), named & (judged == WRONG))
        known, wrong = ((np.sort(paths.confidence[rows]), np.sort(finer[rows])) for rows in chosen)
        return cls(known, wrong)

    def at(self, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of all answers that are known to be right or wrong, int64 [T], and of wrong answers, int64 [T], at each of T
        thresholds."""
        answered, wrong = (_reaching(own, thresholds) - _reaching(finer, thresholds) for own, finer in (self.known, self.wrong))
        return answered, wrong


def _reaching(confidence: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return, for each threshold, the number of values in the sorted array `confidence` that are at least the threshold."""
    return len(confidence) - np.searchsorted(confidence, thresholds, side="left")


def with_confidence(tuning: Paths, tuning_label: np.ndarray, paths: Paths, label: np.ndarray, precision: float, confidence: float) -> float:
    """Return the lowest threshold whose answers pass the tests for `precision` at `confidence`; `NEVER` if no threshold passes.

    `tuning`, `tuning_label`: photographs on which the candidates for the threshold are chosen. `paths`, `label`: other photographs, on
    which the candidates are tested. Labels are int64 [N, R]."""
    candidates = _candidates(tuning)
    if not len(candidates):
        return NEVER
    first = _safe(*AnswerCounts.of(tuning, tuning_label).at(candidates), len(label) / len(tuning_label), precision)
    answered, wrong = AnswerCounts.of(paths, label).at(candidates[first:])
    failed = wrong > most_wrong(len(label), 1 - precision, 1 - confidence)[answered]
    passed = int(np.argmax(failed)) if failed.any() else len(failed)
    return float(candidates[first + passed - 1]) if passed else NEVER


def _candidates(paths: Paths) -> np.ndarray:
    """Return `CANDIDATES` thresholds in descending order, float64; [] if no path has a taxon.

    The thresholds are equally spaced quantiles of the distinct confidences of all taxa on the paths."""
    found = np.unique(paths.confidence[paths.path >= 0])[::-1]
    return np.interp(np.linspace(0, len(found) - 1, CANDIDATES), np.arange(len(found)), found) if len(found) else found


def _safe(answered: np.ndarray, wrong: np.ndarray, ratio: float, precision: float) -> int:
    """Return the index of the candidate threshold with which the tests begin.

    This is the first candidate whose expected number of wrong answers in the tests is at least `SAFE` standard errors below the number that
    `precision` allows. If there is none, it is the candidate with the largest such margin. `answered`, `wrong`: numbers of all answers and
    of wrong answers among the tuning photographs, for each candidate. `ratio`: number of test photographs / number of tuning photographs.
    The expected number of answers in the tests is `ratio` x (`answered` less two standard errors)."""
    expected = ratio * np.maximum(answered - 2 * np.sqrt(answered), 0)
    margin = ((1 - precision) * expected - ratio * wrong) / np.sqrt(precision * (1 - precision) * np.maximum(expected, 1))
    return int(np.argmax(margin >= min(SAFE, margin.max())))


@functools.lru_cache(maxsize=16)
def most_wrong(count: int, rate: float, level: float) -> np.ndarray:
    """Return, for each n from 0 to `count`, the greatest k with P(X <= k) <= `level` for X binomial (n, `rate`); -1 if there is no such k.

    The result is int64 [count + 1]. P(X <= k) for n trials is computed from P(X <= k) for n - 1 trials; k grows by at most one per
    trial."""
    found = np.full(count + 1, -1)
    k, below, here = 0, 1.0, 1.0  # P(X <= k) and P(X = k)
    for n in range(1, count + 1):
        below -= rate * here
        here *= n * (1 - rate) / (n - k)
        if below <= level:
            here *= (n - k) / (k + 1) * rate / (1 - rate)
            k, below = k + 1, below + here
        found[n] = k - 1
    return found


def on_average(paths: Paths, label: np.ndarray, precision: float) -> float:
    """Return the threshold at which the share of photographs without a wrong answer is on average at least `precision`.

    Return `NEVER` if there are too few photographs. `label`: int64 [N, R], -1 where missing. An answer at a rank with a missing label is
    wrong only if a coarser taxon of the path is wrong."""
    scores = np.sort(least_thresholds(paths, outcomes(paths, label)))
    number = math.ceil((len(scores) + 1) * precision)
    return NEVER if number > len(scores) else float(scores[number - 1])


def least_thresholds(paths: Paths, judged: np.ndarray) -> np.ndarray:
    """Return, for each of N photographs, the least threshold at which the photograph has no wrong answer, float64 [N].

    This is the next float above the confidence of the coarsest wrong taxon, or 0 if no taxon is wrong. `judged`: int8 [N, R], as `outcomes`
    returns."""
    wrong = judged == WRONG
    first = np.argmax(wrong, axis=1)
    confidence = np.nextafter(paths.confidence[np.arange(len(wrong)), first], np.inf)
    return np.where(wrong.any(axis=1), confidence, 0.0)


def set_threshold(probability: Sequence[float] | np.ndarray, coverage: float) -> float:
    """Return a threshold that a later value reaches with a probability of at least `coverage`, on average; 0 if there are too few values.

    `probability`: [n], values of n photographs, such as the probabilities of their true classes at one rank. The prediction set of a
    photograph is then all classes with at least the threshold: it contains the true class with probability `coverage`."""
    found = np.sort(np.asarray(probability, dtype=np.float64))[::-1]
    number = math.ceil((len(found) + 1) * coverage)
    return 0.0 if number > len(found) else float(found[number - 1])


def precision_of(paths: Paths, label: np.ndarray, threshold: float) -> tuple[float, float]:
    """Return the precision at a threshold (among answers that are known to be right or wrong), and the share of photographs with an answer.

    The precision is NaN if no answer is known to be right or wrong. The share is NaN without photographs."""
    (answered,), (wrong,) = AnswerCounts.of(paths, label).at(np.array([threshold]))
    rank = answer_ranks(paths, threshold)
    return (1 - float(wrong / answered) if answered else math.nan), float((rank != NONE).mean()) if len(rank) else math.nan
