"""Compare how well linnaeus' and SAELens' dictionaries recover planted features, at equal samples, sparsity and width.

    python -m benchmarks.dictionary_recovery --saelens PYTHON     two sets, 5 seeds; 15 minutes of CPU; the same command continues
    python -m benchmarks.dictionary_recovery --sets easy --seeds 0 --results FILE       without SAELens; 1 minute
    python -m benchmarks.dictionary_recovery --sets large --device cuda                 on a GPU; without SAELens

PYTHON is that of an environment with `pip install sae-lens==6.54.12`. Data and results pass as files. Both programs train on the same
samples in the same order, with the same batch, Adam and a learning rate that falls to 0 in the last third. Each seed is another set of
planted features, and another start of the dictionaries. Differences are paired by seed, with the 95 % interval of Student's t. Every
finished trial is a line of `--results`, and is not repeated.

Sets (`planted_config.py`): small, 1,000 features in 128 dimensions, of which 256 vectors can recover a quarter; easy, 200 features in 176
dimensions, and 200 vectors. Bars: each variant within 0.01 MCC and 0.02 F1 of SAELens', our best at least its best; on the easy set MCC and
uniqueness at least 0.95, at most 1 % dead, shrinkage 0.99 to 1.01; vectors that left their initial directions; L0 in use within 5 % of k;
ten times the coefficient changes L0 at least twofold; SAELens' evaluator gives our numbers to 1e-4.

The set large, 16,384 features in 768 dimensions, has the generator, width, k, samples, batch and learning rate of SynthSAEBench (arXiv
2602.14687): 4,096 vectors, and k = 25, as the 4,096 most frequent features have 25.4 of the 35 active ones. Bars: MCC and F1 read off its
figure. 200 million samples in float32 would be a file of 614 GB, so SAELens is not trained on them. With fewer `--samples` there is no
verdict. The matching of 4,096 vectors with 16,384 features visits each vector one to three times (`recovery.assign`), seconds in all.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.dictionary_recovery.controls import CONTROLS
from benchmarks.dictionary_recovery.size import Size
from benchmarks.dictionary_recovery.study import EXPORT, Study, Variant
from benchmarks.machine import describe_machine, write_numbers
from benchmarks.saelens.trials import Measures, at_least, difference, held, means

RESULTS = Path("benchmarks/results/dictionary_recovery.jsonl")
SEEDS = 5  # fewer give no verdict
COLUMNS = ("mcc", "f1", "uniqueness", "precision", "recall", "dead", "shrinkage", "l0", "explained_variance", "cpu_seconds")
SIZES = {
    "small": Size("small", features=256, k=5, samples=300_000, batch=256, lr=3e-3, dead_after=20_000),
    "easy": Size("easy", features=200, k=6.4, samples=600_000, batch=128, lr=2e-3, dead_after=10_000),
    "large": Size("large", features=4096, k=25, samples=200_000_000, batch=1024, lr=3e-4, dead_after=1_000_000),
}
PUBLISHED = {"batch_topk": {"mcc": 0.755, "f1": 0.72}, "jumprelu": {"mcc": 0.73, "f1": 0.61}, "matryoshka": {"mcc": 0.79, "f1": 0.87}}
MOVED = 0.9  # largest median cosine of a vector and its start
Rows = dict[tuple[str, str], list[Measures]]  # (program, variant) -> measures of each seed
TIMES_TEN = "jumprelu_times_ten"  # with ten times the coefficient


def variants(sparsity: float, theirs: float, widths: tuple[int, ...], k: int | None = None) -> dict[str, Variant]:
    """Return the variants. sparsity, theirs: coefficients of JumpReLU that give about k active features in our program and in SAELens.
    k: of topk, instead of that of the size."""
    batch = ("model.k={k}", "model.block={batch}")
    inner = f"model.widths=[{','.join(map(str, widths))}]"
    return {
        "topk": Variant(("model=topk", "model.k={k}"), "topk", shared=("k",), k=k),
        "batch_topk": Variant(("model=batch_topk", *batch), "batchtopk", shared=("k",)),
        "jumprelu": Variant(
            ("model=jumprelu", f"model.sparsity={sparsity}"), "jumprelu", {"l0_coefficient": theirs}, ("l0_warm_up_steps",)
        ),
        "matryoshka": Variant(
            ("model=matryoshka", *batch, inner), "matryoshka_batchtopk", shared=("k", "matryoshka_widths"), widths=widths
        ),
        TIMES_TEN: Variant(("model=jumprelu", f"model.sparsity={10 * sparsity}")),
    }


# On the easy set the number of active features is close to Poisson's law with mean 6, so 12 of topk are enough for 99 % of the samples.
# For large: activities are about 4, and other features disturb them by about 1, so thresholds sqrt(0.0052 x 768) = 2 tell them apart. The
# widths are those of SynthSAEBench. SAELens has no coefficient, as it is not trained there.
VARIANTS = {
    "small": variants(0.0086, 5.2, (16, 64)),
    "easy": variants(0.05, 25.0, (25, 50), k=12),
    "large": variants(0.0052, 0.0, (128, 512, 2048)),
}
del VARIANTS["large"][TIMES_TEN]  # its thresholds of 6 are above all activities


def main(argv: Sequence[str] | None = None) -> int:
    o = read_options(argv)
    if o.device == "cpu":
        torch.set_num_threads(1)
    tables, missed = {}, False
    with tempfile.TemporaryDirectory(prefix="dictionary-recovery-") as root:
        for name in o.sets:
            samples, device = o.samples or SIZES[name].samples, None if o.device == "cpu" else o.device
            size = SIZES[name]._replace(tested=o.tested, samples=samples, device=device)
            chosen = {variant: VARIANTS[name][variant] for variant in o.variants if variant in VARIANTS[name]}
            study = Study(size, chosen, o.controls, o.results.resolve(), o.saelens, Path(root) / name)
            rows: Rows = {}
            for seed in o.seeds:
                for pair, measures in study.seed(seed).items():
                    rows.setdefault(pair, []).append(measures)
            print(
                f"\n{name}: {size.samples:,} samples, {size.features} vectors, k = {size.k}, seeds {', '.join(map(str, o.seeds))}\n\n"
                + "\n".join(table(rows))
            )
            verdicts = judged(name, size, rows)
            print("\n" + "\n".join(f"- {text}: {verdict}" for text, verdict in verdicts))
            missed |= any(verdict == "MISSED" for _, verdict in verdicts)
            tables[name] = {
                "size": size._asdict(),
                "means": {" ".join(pair): means(found) for pair, found in rows.items()},
                "bars": verdicts,
            }
    if o.json:
        write_numbers(o.json, {"machine": describe_machine(), "sets": tables})
    return int(missed)


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saelens", metavar="PYTHON", help="python with SAELens; without it only linnaeus and the controls are measured")
    parser.add_argument("--sets", nargs="+", choices=list(SIZES), default=["small", "easy"], help="sets of planted features (%(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=range(SEEDS), help=f"seeds (0 to {SEEDS - 1}); fewer give no verdict")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS["small"]), default=list(VARIANTS["small"]), help="variants (all)")
    parser.add_argument("--controls", nargs="*", choices=list(CONTROLS), default=list(CONTROLS), metavar="NAME", help="controls (all)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of data, dictionaries and controls (%(default)s)")
    parser.add_argument("--samples", type=int, help="training samples (those of the set)")
    parser.add_argument("--tested", type=int, default=SIZES["small"].tested, help="evaluated samples (%(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file of the finished trials (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number to this file")
    options = parser.parse_args(argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device=cuda: no CUDA device here")
    if options.saelens and (options.device == "cuda" or "large" in options.sets):
        parser.error("--saelens is for the sets small and easy on the CPU; the samples of large do not fit into a file")
    return options


def table(rows: Rows) -> list[str]:
    """Return the lines of the table of means over the seeds, and of the differences between linnaeus and SAELens."""
    lines = [f"| | {' | '.join(COLUMNS)} |", f"|---|{'---:|' * len(COLUMNS)}"]
    for (who, name), found in ((pair, found) for pair, found in rows.items() if pair[0] != EXPORT):
        mean = means(found)
        lines.append(f"| {who} {name} | {' | '.join(shown(column, mean.get(column)) for column in COLUMNS)} |")
    for name in [name for who, name in rows if who == "SAELens"]:
        cells = [compared(rows["linnaeus", name], rows["SAELens", name], column) for column in COLUMNS]
        lines.append(f"| linnaeus - SAELens, {name} | {' | '.join(cells)} |")
    return lines


def judged(name: str, size: Size, rows: Rows) -> list[tuple[str, str]]:
    """Return the bars of the set `name` and whether each is held, as (text with the figure, verdict)."""
    ours = {variant: found for (who, variant), found in rows.items() if who == "linnaeus"}
    theirs = {variant: found for (who, variant), found in rows.items() if who == "SAELens"}
    plain = {variant: found for variant, found in ours.items() if variant != TIMES_TEN}
    found = []
    for variant in theirs:
        for column, bar in (("mcc", 0.01), ("f1", 0.02)):
            d = difference(ours[variant], theirs[variant], column)
            text = f"{variant}, {column} {d.mean:+.4f} ({d.low:+.4f} to {d.high:+.4f}), bar -{bar}"
            found.append((text, at_least(d, -bar, len(ours[variant]), SEEDS)))
    gaps = [row["evaluator_gap"] for measured in rows.values() for row in measured if "evaluator_gap" in row]
    if gaps:
        found.append((f"largest difference from SAELens' evaluator {max(gaps):.1e}, bar 1e-4", held(max(gaps) <= 1e-4)))
    if theirs:
        for column in ("mcc", "f1"):
            best = [max(side.values(), key=lambda one: np.mean([row[column] for row in one])) for side in (plain, theirs)]
            d = difference(best[0], best[1], column)
            found.append((f"best {column} {d.mean:+.4f} ({d.low:+.4f} to {d.high:+.4f}), bar 0", at_least(d, 0.0, len(best[0]), SEEDS)))
    moved = max(row["cosine_to_start"] for one in plain.values() for row in one)
    found.append((f"median cosine of vectors and their start, at most {moved:.2f}, bar {MOVED}", held(moved <= MOVED)))
    for variant, one in plain.items() if name != "easy" else ():  # samples of the easy set may have fewer than k active features
        active = means(one)["l0"]
        if variant != "jumprelu":  # it has no k
            found.append((f"{variant}, L0 {active:.2f} for k = {size.k}, bar 5 %", held(abs(active / size.k - 1) <= 0.05)))
    if TIMES_TEN in ours and name == "small":  # no threshold passes the activities of the easy set, which are all far above 0
        factor = means(ours["jumprelu"])["l0"] / means(ours[TIMES_TEN])["l0"]
        found.append((f"ten times the coefficient divides L0 by {factor:.1f}, bar 2", held(factor >= 2)))
    if name == "easy":
        for variant, one in plain.items():
            mean = means(one)
            text = ", ".join(f"{column} {mean[column]:.4f}" for column in ("mcc", "uniqueness", "dead", "shrinkage"))
            good = mean["mcc"] >= 0.95 and mean["uniqueness"] >= 0.95 and mean["dead"] <= 0.01 and 0.99 <= mean["shrinkage"] <= 1.01
            found.append((f"{variant} on the easy set: {text}; bars 0.95, 0.95, 0.01, 0.99 to 1.01", held(good)))
    for variant, bars in PUBLISHED.items() if name == "large" else ():
        for column, bar in bars.items() if variant in plain else ():
            mean, enough = means(plain[variant])[column], len(plain[variant]) >= SEEDS and size.samples >= SIZES[name].samples
            verdict = held(mean >= bar) if enough else f"no verdict under {SEEDS} seeds and {SIZES[name].samples:,} samples"
            found.append((f"{variant}, {column} {mean:.3f}, published {bar}", verdict))
    return found


def compared(ours: Sequence[Measures], theirs: Sequence[Measures], column: str) -> str:
    d, digits = difference(ours, theirs, column), 1 if column == "cpu_seconds" else 3
    return f"{d.mean:+.{digits}f} ({d.low:+.{digits}f} to {d.high:+.{digits}f})"


def shown(column: str, value: float | None) -> str:
    return "" if value is None else f"{value:.{1 if column == 'cpu_seconds' else 3}f}"


if __name__ == "__main__":
    sys.exit(main())
