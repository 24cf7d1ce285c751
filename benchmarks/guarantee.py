"""Check the precision that `linnaeus calibrate` states: many calibrations drawn from one population, each applied to the whole population.

    python -m benchmarks.guarantee RUN              scores of the validation samples of a run; 5 minutes on one core
    python -m benchmarks.guarantee --synthetic      scores with known truth; 5 minutes

A draw takes `--size` photographs with replacement, fits temperatures and thresholds as `linnaeus calibrate` does, and applies them to the
whole population, whose precision is therefore exact. The true probabilities of the classes of synthetic photographs are known: each draw
has new labels, and precision is computed from the probabilities.

Bars: the stated precision is missed in at most 5 % of the draws plus two standard errors; the share of photographs with an answer is at
least 0.95 of the best that a threshold chosen on the population has (at a precision of 0.95); the sets cover as stated, on average over
the draws. Beside them:

    possible        the share of answers, of the best, at the least threshold whose test succeeds in half of the draws: what could be had
                    from so many photographs if this threshold were known before
    interpolated    np.quantile, which has been published for this purpose: the share without a wrong answer, and the share of draws in
                    which that is below the precision
    fixed           the precision of a threshold of 0.65
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.machine import describe_machine, write_numbers
from linnaeus.workloads.taxonomy.heads.conditional import SiblingScores
from linnaeus.workloads.taxonomy.heads.head import LinearScores, Scores
from linnaeus.workloads.taxonomy.heads.layout import Layout
from linnaeus.workloads.taxonomy.heads.marginal import MarginalScores
from linnaeus.workloads.taxonomy.trained.calibrate import guarantee, labelled
from linnaeus.workloads.taxonomy.trained.calibrate.calibration_fit import COVERAGES, Evidence, fit_temperature, fit_thresholds, is_tuning
from linnaeus.workloads.taxonomy.trained.calibrate.fit import batches
from linnaeus.workloads.taxonomy.trained.classifier.load_parts import load_model
from linnaeus.workloads.taxonomy.trained.probabilities.class_probabilities import class_log_probs
from linnaeus.workloads.taxonomy.trained.probabilities.rollup import UNKNOWN, WRONG, Paths, confident_paths, outcomes
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

PRECISIONS, CONFIDENCE, SHARE, FIXED = (0.9, 0.95, 0.99), 0.95, 0.95, 0.65
BLOCK = 10_000  # photographs whose probabilities are in memory at once


class Population(NamedTuple):
    """N photographs: their scores as `raw` returns them, and predicted paths and labels, int64 [N, R]."""

    tree: TaxonomyTree
    scores: LinearScores | SiblingScores
    path: np.ndarray
    label: np.ndarray
    chance: list[np.ndarray] | None = None  # per rank float32 [N, C_r]: true probability of each class; None: that of the label is 1

    def sample(self, size: int, seed: int) -> Population:
        """Return `size` photographs, drawn with replacement. Labels are new if the true probabilities are known."""
        rng = np.random.default_rng(seed)
        rows = rng.integers(0, len(self.label), size)
        label = self.label[rows] if self.chance is None else _labels(self.chance[-1][rows], rng)
        return Population(self.tree, _rows(self.scores, rows), self.path[rows], label)

    def temperatures(self, rows: np.ndarray) -> list[float]:
        """Return the temperature of each rank under which the labels of the photographs at the positions `rows`, int64, are most likely."""
        chosen, label = _rows(self.scores, rows), torch.from_numpy(self.label[rows])
        return [fit_temperature(*chosen.choices(r, label)) for r in range(len(self.tree.ranks))]

    def probabilities(self, rows: slice | np.ndarray, temperature: Sequence[float]) -> tuple[np.ndarray, ...]:
        """Return the probabilities of each rank of some photographs under temperatures."""
        found = _rows(self.scores, rows).tempered(temperature).log_probs()
        return tuple(class_log_probs(log_p, size).exp().numpy() for log_p, size in zip(found, self.tree.sizes, strict=True))

    def evidence(self, temperature: Sequence[float]) -> Evidence:
        """Return the evidence for a calibration from all photographs, with their scores divided by the temperature of each rank."""
        probabilities = self.probabilities(slice(None), temperature)
        true = np.full(self.label.shape, np.nan)
        for r, probability in enumerate(probabilities):
            known = np.flatnonzero(self.label[:, r] >= 0)
            true[known, r] = probability[known, self.label[known, r]]
        return Evidence(confident_paths(probabilities, self.path), true, self.label, np.ones(len(self.label)))  # none is "none of these"


class Truth:
    """Answers of a population under temperatures at any threshold, and coverages of sets."""

    def __init__(self, population: Population, temperature: Sequence[float], sets: Sequence[Sequence[float]] = ()) -> None:
        """sets: for each coverage the least probability of a class of the set, per rank."""
        count, ranks = population.label.shape
        confidence, inside, labels = np.empty((count, ranks)), np.zeros((len(sets), ranks)), np.zeros(ranks)
        for first in range(0, count, BLOCK):
            rows = slice(first, first + BLOCK)
            probabilities = population.probabilities(rows, temperature)
            confidence[rows] = confident_paths(probabilities, population.path[rows]).confidence
            for r, probability in enumerate(probabilities):
                weights = _weights(population, rows, r)
                labels[r] += weights.sum(dtype=np.float64)
                for own, least in zip(inside, sets, strict=True):
                    own[r] += (weights * (probability >= least[r])).sum(dtype=np.float64)
        self.covered = inside / np.maximum(labels, 1)
        self.count, self.confidence, self.wrong = count, confidence, _wrong(population)
        self.known = ~np.isnan(self.wrong) & (population.path >= 0)
        following = np.concatenate([confidence[:, 1:], np.full((count, 1), -np.inf)], axis=1)
        upper, lower, wrong = confidence[self.known], following[self.known], self.wrong[self.known]
        self.thresholds = np.unique(upper)[::-1]
        self.steps = [(np.sort(ends), _running(wrong, ends)) for ends in (upper, lower)]

    def at(self, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the share of photographs with an answer, and the precision among answers, at each threshold."""
        (own, own_wrong), (finer, finer_wrong) = self.steps
        first, second = (np.searchsorted(ends, thresholds, side="left") for ends in (own, finer))
        answered = (len(own) - first) - (len(finer) - second)
        wrong = own_wrong[first] - finer_wrong[second]
        return answered / self.count, 1 - wrong / np.maximum(answered, 1)

    def without_wrong(self, threshold: float) -> float:
        """Return the share of photographs whose answer at a threshold is right, or that get none."""
        answered, precision = self.at(np.array([threshold]))
        return float(1 - answered[0] * (1 - precision[0]))

    def best(self, precision: float) -> float:
        """Return the largest share of answers of a threshold with a precision."""
        return self._largest(precision, 0.0)

    def possible(self, precision: float, size: int) -> float:
        """Return the share of answers at the least threshold whose test on `size` photographs succeeds in half of the draws."""
        return self._largest(precision, NormalDist().inv_cdf(CONFIDENCE) / size**0.5)

    def _largest(self, precision: float, errors: float) -> float:
        answered, own = self.at(self.thresholds)
        spread = errors * np.sqrt(own * (1 - own) / np.maximum(answered, 1e-9))
        enough = np.flatnonzero(own - spread >= precision - 1e-12)
        return float(answered[enough[-1]]) if len(enough) else 0.0


def raw(scores: Scores) -> LinearScores | SiblingScores:
    """Return the scores in one of the forms that the temperatures of every head of linnaeus give: `logits` per rank or per level."""
    found = scores.tempered([1.0] * len(scores.log_probs()))
    assert isinstance(found, LinearScores | SiblingScores), f"{type(found).__name__} is neither LinearScores nor SiblingScores"
    return found


def _rows(scores: LinearScores | SiblingScores, rows: np.ndarray | slice) -> LinearScores | SiblingScores:
    """Return the scores of the photographs at some positions."""
    if isinstance(scores, SiblingScores):
        return SiblingScores(scores.layout, [z[:, rows] for z in scores.logits], scores.greedy)
    return LinearScores(scores.tree, [z[rows] for z in scores.logits])


def joined(parts: Sequence[LinearScores | SiblingScores]) -> LinearScores | SiblingScores:
    """Return the scores of all photographs of some batches."""
    if isinstance(first := parts[0], SiblingScores):
        return SiblingScores(first.layout, [torch.cat(own, 1) for own in zip(*(one.logits for one in parts), strict=True)], first.greedy)
    return LinearScores(first.tree, [torch.cat(own) for own in zip(*(one.logits for one in parts), strict=True)])


def _weights(population: Population, rows: slice, r: int) -> np.ndarray:
    """Return the true probability of each class of a rank, float32 [n, C_r]; 1 for the label if it is not known otherwise."""
    if population.chance is not None:
        return population.chance[r][rows]
    label = population.label[rows, r]
    return (np.arange(population.tree.sizes[r]) == label[:, None]).astype(np.float32)


def _wrong(population: Population) -> np.ndarray:
    """Return the probability that each taxon of the paths is a wrong answer, float64 [N, R]; NaN if that is unknown."""
    if population.chance is not None:
        columns = zip(population.chance, population.path.T, strict=True)
        return np.stack([1.0 - chance[np.arange(len(own)), own].astype(float) for chance, own in columns], axis=1)
    judged = outcomes(Paths(population.path, np.ones(population.path.shape)), population.label)
    return np.where(judged == UNKNOWN, np.nan, judged == WRONG)


def _running(wrong: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the sum of `wrong` from each end upwards, in ascending order of the ends; 0 after the last."""
    return np.append(wrong[np.argsort(ends, kind="stable")][::-1].cumsum()[::-1], 0.0)


def of_run(run: Path, checkpoint: str | None) -> Population:
    """Return the validation samples of a run as a population. `checkpoint`: "best", "newest" or a step; None: the default."""
    model = load_model(run, checkpoint=checkpoint)
    model.calibration = None
    data = labelled.of_run(run, "validation", model.tree, model.components)
    parts, paths, rows = [], [], []
    for _, good, prepared in batches(model, data):
        scores = model.scores(prepared)
        parts.append(raw(scores))
        paths.append(scores.path().numpy())
        rows.append(good)
    return Population(model.tree, joined(parts), np.concatenate(paths), data.labels[np.concatenate(rows)])


def synthetic(count: int, seed: int) -> Population:
    """Return a population of 40 genera with 4 species each, of the head `marginal`. The network is overconfident: its scores are too large
    by a factor of 1.5."""
    tree, _ = TaxonomyTree.from_lineages(("genus", "species"), np.array([[f"{i // 4:02}", f"{i:03}"] for i in range(160)]))
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((count, 160), dtype=np.float32)
    scores[np.arange(count), rng.integers(0, 160, count)] += rng.gamma(3.0, 2.2, count)
    scores += np.repeat(rng.standard_normal((count, 40), dtype=np.float32), 4, axis=1)
    true = torch.from_numpy(scores).softmax(1).numpy()
    network = MarginalScores(Layout(tree, null=False), torch.from_numpy(1.5 * scores))
    chance = [true.reshape(count, 40, 4).sum(2), true]
    return Population(tree, raw(network), network.path().numpy(), _labels(true, rng), chance)


def _labels(chance: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a genus and a species for each row of true probabilities of the species [n, C], int64 [n, 2]."""
    species = (chance.cumsum(axis=1) > rng.random((len(chance), 1)) * chance.sum(axis=1, keepdims=True)).argmax(axis=1)
    return np.stack([species // 4, species], axis=1)


class Draw(NamedTuple):
    """Results of one calibration, measured on the whole population. Lists have a value for each precision."""

    missed: list[bool]
    answered: list[float]
    average: list[float]  # share without a wrong answer, of the threshold `on_average`
    interpolated: list[float]  # the same, of the interpolated quantile
    covered: np.ndarray  # [coverages, R]


def draw(population: Population, sample: Population, precisions: Sequence[float]) -> Draw:
    """Calibrate on a sample, and judge the calibration on the population."""
    tuning = is_tuning(len(sample.label))
    temperature = sample.temperatures(np.flatnonzero(tuning))
    evidence = sample.evidence(temperature)
    found = fit_thresholds(evidence, tuning, "", temperature, precisions, CONFIDENCE)
    truth = Truth(population, temperature, list(found.sets.values()))
    drawn = evidence.take(np.flatnonzero(~tuning))
    least = guarantee.least_thresholds(drawn.paths, outcomes(drawn.paths, drawn.label))
    answered, reached = truth.at(np.array([one.threshold for one in found.precisions]))
    missed = [bool(share > 0 and own < one.precision) for share, own, one in zip(answered, reached, found.precisions, strict=True)]
    average = [truth.without_wrong(one.on_average) for one in found.precisions]
    interpolated = [truth.without_wrong(float(np.quantile(least, one.precision))) for one in found.precisions]
    return Draw(missed, answered.tolist(), average, interpolated, truth.covered)


def report(population: Population, draws: Sequence[Draw], size: int) -> tuple[list[str], bool]:
    """Return (the lines of the tables, True if the bars are met)."""
    plain, count = Truth(population, [1.0] * len(population.tree.ranks)), len(draws)
    most = 1 - CONFIDENCE + 2 * (CONFIDENCE * (1 - CONFIDENCE) / count) ** 0.5
    titles = ["precision", "missed, bar", "answered", "of the best", "possible", "on average", "interpolated", "missed", "fixed 0.65"]
    lines = [f"{count} draws of {size:,}; {len(population.label):,} photographs", ""]
    lines += [f"| {' | '.join(titles)} |", f"|{'---:|' * len(titles)}"]
    fixed, met = float(plain.at(np.array([FIXED]))[1][0]), True
    for i, precision in enumerate(PRECISIONS):
        missed, answered = np.mean([d.missed[i] for d in draws]), np.mean([d.answered[i] for d in draws])
        average, interpolated = np.array([d.average[i] for d in draws]), np.array([d.interpolated[i] for d in draws])
        best = plain.best(precision) or 1.0
        met &= bool(missed <= most and average.mean() >= precision - 0.001 and (precision != SHARE or answered >= SHARE * best))
        cells = [f"{missed:.3f}, {most:.3f}", *(f"{x:.3f}" for x in (answered, answered / best, plain.possible(precision, size) / best))]
        cells += [f"{average.mean():.4f}", f"{interpolated.mean():.4f}", f"{(interpolated < precision).mean():.3f}", f"{fixed:.4f}"]
        lines.append(f"| {precision:g} | {' | '.join(cells)} |")
    lines += ["", f"| coverage | {' | '.join(population.tree.ranks)} |", f"|---:|{'---:|' * len(population.tree.ranks)}"]
    for coverage, row in zip(COVERAGES, np.mean([d.covered for d in draws], axis=0), strict=True):
        met &= bool((row >= coverage - 0.001).all())
        lines.append(f"| {coverage:g} | {' | '.join(f'{value:.4f}' for value in row)} |")
    return lines, met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--synthetic", action="store_true")
    parser.add_argument("--checkpoint", help="of the run")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--size", type=int, default=10_000, help="photographs of a calibration (%(default)s)")
    parser.add_argument("--photographs", type=int, default=40_000, help="of the synthetic population (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    options = parser.parse_args()
    if (options.run is None) != options.synthetic:
        parser.error("give either RUN or --synthetic")
    torch.set_num_threads(1)
    with torch.inference_mode():
        population = synthetic(options.photographs, 0) if options.synthetic else of_run(options.run, options.checkpoint)
        draws = [draw(population, population.sample(options.size, seed), PRECISIONS) for seed in range(options.draws)]
        lines, met = report(population, draws, options.size)
    print("\n".join([*lines, "", f"bars {'met' if met else 'MISSED'}"]))
    if options.json:
        write_numbers(options.json, {"machine": describe_machine(), "table": lines, "met": met})
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
