"""Compare linnaeus with a flat timm script and a timm script with a classifier per rank, on real photographs at equal CPU time.

    python -m benchmarks.recipes --data FOLDER                        every set, 5 seeds; 5 hours of CPU; the same command continues
    python -m benchmarks.recipes --data FOLDER --sets plants480 --cpu-seconds 20 --seeds 1 --results FILE      a short trial, 10 minutes
    python -m benchmarks.recipes --data FOLDER --tune-only            the table of the settings, without test samples
    python -m benchmarks.recipes --data FOLDER --half-labels          also without half of the training labels at the finest rank
    python -m benchmarks.recipes --data FOLDER --unseen               also without half of the finest classes
    python -m benchmarks.recipes --data FOLDER --sets mine --ranks family genus species --group observation      FOLDER/mine/manifest.csv

FOLDER contains the sets as folders with `manifest.csv` (`sets.py`). A kind is linnaeus or one of the scripts. For each set and kind, every
setting of `recipe_list.py` is trained with seed 0, or with `--choice-seeds 3` with the seeds 0, 100 and 200. The one with the best mean
validation accuracy at the finest rank is trained with each of the seeds 1, 2, ..., and evaluated on the test samples, which are not read
before. A training takes a CPU time fixed per set as a whole, start and validations included, on one thread. Differences are paired by seed,
with the 95 % interval of Student's t. Every finished trial is a line of `--results`, and is not repeated.

With `--half-labels` the same settings are trained again after half of the labels of the training samples at the finest rank were removed.
The flat script leaves these samples out; the script with ranks and linnaeus learn their coarser labels.

With `--unseen` the same settings are trained again without half of the finest classes whose parent has other classes. The measures are
those of the coarser ranks on the test photographs of these classes.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Sequence
from compileall import compile_dir
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.heads import Difference
from benchmarks.machine import describe_machine, write_numbers
from benchmarks.recipes.recipe_list import BF16, settings_of
from benchmarks.recipes.sets import SETS, PhotographSet
from benchmarks.recipes.trials import ROOT, Measures, Study

TUNED = ("flat script", "script with ranks", "linnaeus")
KINDS = (*TUNED, BF16)
MEASURES = {"top-1": "{finest}/top1", "macro": "{finest}/macro_top1", "HD@1": "hd1", "ECE": "{finest}/ece", "chain": "chain"}
UNSEEN = 0.5  # share of the finest classes that are left out with `--unseen`
RESULTS = Path("benchmarks/results/recipes.jsonl")
Results = dict[str, list[Measures]]  # kind -> measures of the test rows, one entry per seed


def train(study: Study, name: str, kind: str, setting: str, seed: int) -> dict[str, Measures]:
    """Train one setting of a kind with a seed. Return {split: measures}, and the CPU seconds under "cost"."""
    words = settings_of(kind)[setting]
    return study.ours(name, words, seed) if kind == "linnaeus" else study.plain(name, kind != "flat script", words, seed)


def tune(study: Study, name: str, parallel: int, seeds: int = 1) -> dict[str, str]:
    """Train every setting with the seeds 0, 100, ..., `seeds` of them, and print the mean validation accuracies. Return {kind: best
    setting}.

    The script in bf16 gets the best setting of the script with ranks."""
    finest = f"{SETS[name].finest}/top1"
    numbers = [100 * i for i in range(seeds)]
    pairs = [(kind, setting) for kind in TUNED for setting in settings_of(kind)]
    todo = [(*pair, seed) for pair in pairs for seed in numbers]
    with ThreadPoolExecutor(parallel) as pool:
        found = dict(zip(todo, pool.map(lambda one: train(study, name, *one), todo), strict=True))
    mean = {pair: float(np.mean([found[*pair, seed]["val"][finest] for seed in numbers])) for pair in pairs}
    title = f"{name}, validation rows, seed{'s' * (seeds > 1)} {', '.join(map(str, numbers))}{described(study, name)}"
    print(f"\n{title}\n\n| | setting | {finest} | CPU s |\n|---|---|---:|---:|")
    for kind, setting in pairs:
        seconds = np.mean([found[kind, setting, seed]["cost"]["cpu_seconds"] for seed in numbers])
        print(f"| {kind} | {setting} | {100 * mean[kind, setting]:.1f} | {seconds:.0f} |")
    best = {kind: max(settings_of(kind), key=lambda setting: mean[kind, setting]) for kind in TUNED}
    return best | {BF16: best["script with ranks"]}


def test(study: Study, name: str, chosen: dict[str, str], seeds: Sequence[int], parallel: int) -> Results:
    """Train the chosen setting of each kind with every seed. Print the table of the test samples and return their measures."""
    pairs = [(kind, seed) for seed in seeds for kind in KINDS]
    with ThreadPoolExecutor(parallel) as pool:
        found = dict(zip(pairs, pool.map(lambda pair: train(study, name, pair[0], chosen[pair[0]], pair[1]), pairs), strict=True))
    results: Results = {kind: [found[kind, s]["test"] | found[kind, s]["cost"] for s in seeds] for kind in KINDS}
    title = f"\n{name}, test rows, seeds {', '.join(map(str, seeds))}{described(study, name)}\n\n"
    print(title + "\n".join(table(name, chosen, results, unseen=study.unseen > 0)))
    return results


def described(study: Study, name: str) -> str:
    """Return text about the training rows or test rows that `study` leaves out; "" if there are none."""
    finest = SETS[name].finest
    text = f", {study.unlabelled:.0%} of the training rows without {finest}" if study.unlabelled else ""
    return text + (f", of {finest} classes without training rows" if study.unseen else "")


def table(name: str, chosen: dict[str, str], results: Results, unseen: bool = False) -> list[str]:
    """Return the lines of the table: means over the seeds, and the differences of linnaeus from two scripts.

    They are the script with the higher top-1 accuracy at the finest rank, and the script in bf16. `unseen`: True if the samples have no
    label at the finest rank; then the coarser ranks alone are in the table, and the next coarser rank takes its place."""
    own = SETS[name]
    measures = {} if unseen else {title: key.format(finest=own.finest) for title, key in MEASURES.items()}
    ranks = {rank: f"{rank}/top1" for rank in own.ranks[:-1]}
    keys = measures | ranks | {"CPU s": "cpu_seconds"}
    first = ranks[own.ranks[-2]] if unseen else measures["top-1"]
    lines = [f"| | setting | {' | '.join(keys)} |", f"|---|---|{'---:|' * len(keys)}"]
    for kind, rows in results.items():
        cells = [shown(key, float(np.mean([row.get(key, np.nan) for row in rows]))) for key in keys.values()]
        lines.append(f"| {kind} | {chosen[kind]} | {' | '.join(cells)} |")
    better = max(TUNED[:2], key=lambda kind: np.mean([row[first] for row in results[kind]]))
    for other in (better, BF16):
        cells = [compared(key, results["linnaeus"], results[other]) for key in keys.values()]
        lines.append(f"| linnaeus - {other} | | {' | '.join(cells)} |")
    return lines


def losses(name: str, full: Results, half: Results) -> list[str]:
    """Return the lines of a table: how far the accuracy of each kind at the finest rank falls if half of the labels are removed.

    `full`, `half`: results with all labels and without half of them. The last column is the fall of linnaeus minus half of the fall of the
    kind, with its interval. Below 0, the accuracy of linnaeus falls less than half as far."""
    key = f"{SETS[name].finest}/top1"
    lost = {kind: [a[key] - b[key] for a, b in zip(full[kind], half[kind], strict=True)] for kind in KINDS}
    lines = ["| | all labels | half of the labels | lost | loss of linnaeus - half of this loss |", "|---|---:|---:|---:|---:|"]
    for kind in KINDS:
        means = [100 * float(np.mean([row[key] for row in rows[kind]])) for rows in (full, half)]
        d = Difference.of(lost["linnaeus"], [0.5 * value for value in lost[kind]])
        interval = f"{100 * d.mean:+.1f} ({100 * d.low:+.1f} to {100 * d.high:+.1f})"
        lines.append(f"| {kind} | {means[0]:.1f} | {means[1]:.1f} | {100 * float(np.mean(lost[kind])):.1f} | {interval} |")
    return lines


def compared(key: str, ours: Sequence[Measures], theirs: Sequence[Measures]) -> str:
    """Return the mean difference of the measure `key` over the seeds, with its interval, as text."""
    d = Difference.of(*([row.get(key, np.nan) for row in rows] for rows in (ours, theirs)))
    factor, digits = scale(key)
    return f"{factor * d.mean:+.{digits}f} ({factor * d.low:+.{digits}f} to {factor * d.high:+.{digits}f})"


def shown(key: str, value: float) -> str:
    """Return a value of the measure `key` as text for the table."""
    factor, digits = scale(key)
    return f"{factor * value:.{digits}f}"


def scale(key: str) -> tuple[int, int]:
    """Return (factor, digits) with which the measure `key` is shown: shares in percent, other measures as they are."""
    return (1, 3) if key == "hd1" else (1, 0) if key == "cpu_seconds" else (100, 1)


def read_options() -> argparse.Namespace:
    """Return the parsed options of the command line. With `--ranks`, the sets that `--sets` names are added to `SETS`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the sets")
    parser.add_argument("--sets", nargs="+", default=list(SETS), help="names of sets (%(default)s), or a folder of your own with --ranks")
    parser.add_argument("--ranks", nargs="+", help="columns of the labels in the manifest of a set of your own, coarse to fine")
    parser.add_argument("--group", help="column whose equal values stay on one side of the split, for --ranks and no column `split`")
    parser.add_argument("--half-labels", action="store_true", help="train also without half of the training labels at the finest rank")
    parser.add_argument("--unseen", action="store_true", help="train also without half of the finest classes, for coarser labels of theirs")
    parser.add_argument("--cpu-seconds", type=float, help="CPU time of every training (that of the set: sets.py)")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds on the test rows (%(default)s)")
    parser.add_argument("--choice-seeds", type=int, default=1, help="number of seeds with which each setting is tried (%(default)s)")
    parser.add_argument("--parallel", type=int, default=1, help="trials at once, a core each")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file of the finished trials (%(default)s)")
    parser.add_argument("--tune-only", action="store_true", help="print the tables of the settings, without test rows")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number to this file")
    o = parser.parse_args()
    if o.ranks:
        SETS.update({name: PhotographSet(name, tuple(o.ranks), o.group) for name in o.sets})
    for name in o.sets:
        if name not in SETS or not (o.data / name / "manifest.csv").is_file():
            parser.error(f"--sets {name}: a set is one of {', '.join(SETS)}, or has --ranks; it needs {o.data / name / 'manifest.csv'}")
    return o


def main() -> int:
    o = read_options()
    compile_dir(ROOT / "linnaeus", quiet=1)  # otherwise the first start does it, and the measured time of an epoch is wrong
    with tempfile.TemporaryDirectory(prefix="recipes-") as root:
        chosen, results = run(o, Study(o.results.resolve(), o.data.resolve(), Path(root), o.cpu_seconds))
    if o.json:
        write_numbers(o.json, {"machine": describe_machine(), "chosen": chosen, "test": results})
    return 0


def run(o: argparse.Namespace, study: Study) -> tuple[dict[str, dict[str, str]], dict[str, Results]]:
    """Choose a setting of each kind for each set, and train these with every seed. Return {set: {kind: setting}} and the test results."""
    seeds = range(1, o.seeds + 1)
    chosen = {name: tune(study, name, o.parallel, o.choice_seeds) for name in o.sets}
    results = {} if o.tune_only else {name: test(study, name, chosen[name], seeds, o.parallel) for name in o.sets}
    if o.half_labels and not o.tune_only:
        half = dataclasses.replace(study, unlabelled=0.5)
        for name in o.sets:
            own = f"{name}, half of the labels"
            results[own] = test(half, name, chosen[name], seeds, o.parallel)
            print("\n" + "\n".join(losses(name, results[name], results[own])))
    if o.unseen and not o.tune_only:
        without = dataclasses.replace(study, unseen=UNSEEN)
        for name in o.sets:
            results[f"{name}, unseen classes"] = test(without, name, chosen[name], seeds, o.parallel)
    return chosen, results


if __name__ == "__main__":
    sys.exit(main())
