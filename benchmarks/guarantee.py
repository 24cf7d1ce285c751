"""Check the precision that `linnaeus calibrate` states: many calibrations drawn from one population, each applied to the whole population.

    python -m benchmarks.guarantee RUN              scores of the validation samples of a run; 10 minutes on one core
    python -m benchmarks.guarantee --synthetic      scores with known truth; 5 minutes

A draw takes `--size` photographs with replacement, fits temperatures and thresholds as `linnaeus calibrate` does, and applies them to the
whole population, whose precision is therefore exact. Bars: the stated precision is missed in at most 5 % of the draws plus two standard
errors; the share of photographs with an answer is at least 0.95 of the largest share that any threshold with this precision has in the
population (at a size of 5,000 and a precision of 0.95; with fewer photographs, or a precision closer to 1, no method can find the best
threshold); the sets of classes contain the true class as often as stated, on average over the draws. The table also shows the interpolated
quantile and a fixed threshold of 0.65.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.machine import describe_machine, write_numbers
from linnaeus.workloads.taxonomy.trained.calibrate import calibrate_cli, guarantee, labelled
from linnaeus.workloads.taxonomy.trained.calibrate.calibration_fit import Evidence, fit_temperature, fit_thresholds, is_tuning
from linnaeus.workloads.taxonomy.trained.load_parts import load_model
from linnaeus.workloads.taxonomy.trained.rollup import confident_paths, outcomes
from linnaeus.workloads.taxonomy.trained.trained_classifier import class_log_probs

CONFIDENCE, SHARE, FIXED = 0.95, 0.95, 0.65


class Population(NamedTuple):
    """N photographs: log-probabilities of the classes of each rank, float32 [N, C_r]; predicted paths and labels, int64 [N, R]."""

    ranks: Sequence[str]
    log_probs: list[torch.Tensor]
    path: np.ndarray
    label: np.ndarray

    def evidence(self, temperature: Sequence[float]) -> Evidence:
        """Return the evidence for a calibration from all photographs, with their scores divided by the temperature of each rank."""
        probabilities = tuple((z / t).log_softmax(1).exp().numpy() for z, t in zip(self.log_probs, temperature, strict=True))
        true = np.full(self.label.shape, np.nan)
        for r, probability in enumerate(probabilities):
            known = np.flatnonzero(self.label[:, r] >= 0)
            true[known, r] = probability[known, self.label[known, r]]
        return Evidence(confident_paths(probabilities, self.path), true, self.label)


def of_run(run: Path, checkpoint: str | None) -> Population:
    """Return the validation samples of a run as a population. `checkpoint`: "best", "newest" or a step; None: the default."""
    model = load_model(run, checkpoint=checkpoint)
    model.calibration = None
    data = labelled.of_run(run, "validation", model.tree)
    parts: list[list[torch.Tensor]] = [[] for _ in model.tree.ranks]
    paths, rows = [], []
    for _, good, prepared in calibrate_cli._batches(model, data):
        scores = model.scores(prepared)
        for part, log_p, size in zip(parts, scores.log_probs(), model.tree.sizes, strict=True):
            part.append(class_log_probs(log_p, size).float())
        paths.append(scores.path().numpy())
        rows.append(good)
    return Population(model.tree.ranks, [torch.cat(part) for part in parts], np.concatenate(paths), data.labels[np.concatenate(rows)])


def synthetic(count: int, seed: int) -> Population:
    """Return a population of 40 genera with 4 species each. The network is overconfident: its scores are too large by a factor of 1.5."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(0.0, 1.0, (count, 160)) + rng.gamma(3.0, 2.2, (count, 1)) * np.eye(160)[rng.integers(0, 160, count)]
    scores += np.repeat(rng.normal(0.0, 1.0, (count, 40)), 4, axis=1)
    true = np.exp(scores - np.logaddexp.reduce(scores, axis=1, keepdims=True))
    species = (true.cumsum(axis=1) > rng.random((count, 1)) * true.sum(axis=1, keepdims=True)).argmax(axis=1)
    fine = torch.from_numpy(1.5 * scores).float().log_softmax(1)
    coarse = fine.view(count, 40, 4).logsumexp(2)
    best = fine.argmax(1).numpy()
    return Population(("genus", "species"), [coarse, fine], np.stack([best // 4, best], 1), np.stack([species // 4, species], 1))


def best_share(evidence: Evidence, precision: float) -> float:
    """Return the largest share of answered photographs that any threshold has whose precision in the population is at least `precision`."""
    judged = outcomes(evidence.paths, evidence.label)
    found = 0.0
    for threshold in np.unique(evidence.paths.confidence)[:: max(1, len(evidence.label) // 500)]:
        counts = guarantee.counts(evidence.paths, judged, float(threshold))
        if counts.answered and 1 - counts.wrong / counts.answered >= precision:
            found = max(found, counts.answered / len(evidence.label))
    return found


class Draw(NamedTuple):
    """Results of one calibration, measured on the whole population."""

    missed: list[bool]  # per precision
    answered: list[float]
    average: list[float]  # share without a wrong answer, of the threshold `on_average`
    interpolated: list[float]  # the same, of the interpolated quantile
    covered: np.ndarray  # [coverages, R]


def draw(population: Population, size: int, seed: int, precisions: Sequence[float]) -> Draw:
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, len(population.label), size)
    tuning = is_tuning(size)
    some = torch.from_numpy(rows[tuning])
    label = torch.from_numpy(population.label)[some]
    temperature = [fit_temperature(z[some][label[:, r] >= 0], label[:, r][label[:, r] >= 0]) for r, z in enumerate(population.log_probs)]
    whole = population.evidence(temperature)
    found = fit_thresholds(whole.take(rows), tuning, "", temperature, precisions, CONFIDENCE)
    judged = outcomes(whole.paths, whole.label)
    least = guarantee.least_thresholds(whole.paths, judged)
    drawn = least[rows[~tuning]]
    missed, answered, average, interpolated = [], [], [], []
    for one in found.precisions:
        counts = guarantee.counts(whole.paths, judged, one.threshold)
        missed.append(bool(counts.answered and 1 - counts.wrong / counts.answered < one.precision))
        answered.append(counts.answered / len(judged))
        average.append(float((least <= one.on_average).mean()))
        interpolated.append(float((least <= np.quantile(drawn, one.precision)).mean()))
    covered = [
        np.nanmean(np.where(np.isnan(whole.true_probability), np.nan, whole.true_probability >= list(t)), axis=0)
        for t in found.sets.values()
    ]
    return Draw(missed, answered, average, interpolated, np.array(covered))


def report(
    population: Population, draws: list[Draw], precisions: Sequence[float], coverages: Sequence[float], size: int
) -> tuple[list[str], bool]:
    """Return (the lines of the tables, True if the bars are met)."""
    plain = population.evidence([1.0] * len(population.ranks))
    n = len(draws)
    most = 1 - CONFIDENCE + 2 * (CONFIDENCE * (1 - CONFIDENCE) / n) ** 0.5
    lines = [
        f"{n} draws of {size:,} of {len(population.label):,} photographs",
        "",
        "| precision | missed, bar | answered | of the best | on average | interpolated | fixed 0.65 |",
    ]
    lines.append("|---:|---:|---:|---:|---:|---:|---:|")
    met = True
    for i, precision in enumerate(precisions):
        missed, answered = np.mean([d.missed[i] for d in draws]), np.mean([d.answered[i] for d in draws])
        ratio = answered / best_share(plain, precision) if best_share(plain, precision) else 1.0
        average, interpolated = np.mean([d.average[i] for d in draws]), np.mean([d.interpolated[i] for d in draws])
        fixed = guarantee.precision_of(plain.paths, plain.label, FIXED)[0]
        met &= bool(missed <= most and average >= precision - 0.001 and (precision != 0.95 or size < 5000 or ratio >= SHARE))
        cells = [f"{missed:.3f}, {most:.3f}", *(f"{value:.3f}" for value in (answered, ratio))]
        cells += [f"{value:.4f}" for value in (average, interpolated, fixed)]
        lines.append(f"| {precision:g} | {' | '.join(cells)} |")
    lines += ["", f"| coverage | {' | '.join(population.ranks)} |", f"|---:|{'---:|' * len(population.ranks)}"]
    covered = np.mean([d.covered for d in draws], axis=0)
    for coverage, row in zip(coverages, covered, strict=True):
        met &= bool((row >= coverage - 0.001).all())
        lines.append(f"| {coverage:g} | {' | '.join(f'{value:.4f}' for value in row)} |")
    return lines, met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--synthetic", action="store_true")
    parser.add_argument("--checkpoint", help="of the run")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--size", type=int, default=5000, help="photographs of a calibration")
    parser.add_argument("--photographs", type=int, default=20_000, help="of the synthetic population")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    options = parser.parse_args()
    if (options.run is None) != options.synthetic:
        parser.error("give either RUN or --synthetic")
    torch.set_num_threads(1)
    population = synthetic(options.photographs, 0) if options.synthetic else of_run(options.run, options.checkpoint)
    precisions, coverages = (0.9, 0.95, 0.99), (0.9, 0.95)
    with torch.inference_mode():
        draws = [draw(population, options.size, seed, precisions) for seed in range(options.draws)]
        lines, met = report(population, draws, precisions, coverages, options.size)
    print("\n".join([*lines, "", f"bars {'met' if met else 'MISSED'}"]))
    if options.json:
        write_numbers(options.json, {"machine": describe_machine(), "table": lines, "met": met})
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
