"""Compare remedies for long-tailed classes on the validation photographs of a set: resampling, logit adjustment and training in two stages.

    python -m benchmarks.recipes.long_tail --data FOLDER                     plants3900, 12 epochs, 3 seeds
    python -m benchmarks.recipes.long_tail --data FOLDER --remedies natural "two stages" --parallel 2

Every remedy is `experiment=photos` with the same number of epochs and images of 64 px, on one thread. The second stage is trained in
addition: it starts with the weights of the first one and trains new heads alone. Accuracies are of the validation photographs: of all
(top-1), the mean over classes (macro), and the means over classes with more than 100, 20 to 100 and fewer than 20 training photographs.
Differences from `natural` are paired by seed, with the 95 % interval of Student's t. Every finished trial is a line of `--results`, and is
not repeated.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.recipes.__main__ import compared, shown
from benchmarks.recipes.recipe_list import COMMON
from benchmarks.recipes.sets import SETS
from benchmarks.recipes.trials import Measures, Study, evaluate, train_ours

RESULTS = Path("benchmarks/results/long_tail.jsonl")
NATURAL = "natural"
BALANCED = ["data.sampling=class_balanced", "trainer.freeze=[trunk,norm]"]
REMEDIES: dict[str, tuple[list[str], list[str]]] = {  # name -> (settings of the first stage, settings of a second stage; [] without one)
    NATURAL: ([], []),
    "square root of the counts": (["data.sampling=square_root"], []),
    "class balanced": (["data.sampling=class_balanced"], []),
    "logit adjustment 0.5": (["loss.logit_adjustment=0.5"], []),
    "logit adjustment 1": (["loss.logit_adjustment=1.0"], []),
    "two stages, new heads": ([], [*BALANCED, "run.init_skip=[head]"]),
    "two stages, the same heads": ([], BALANCED),
}
KEYS = {
    "top-1": "{finest}/top1",
    "macro": "{finest}/macro_top1",
    "many": "{finest}/many",
    "medium": "{finest}/medium",
    "few": "{finest}/few",
    "HD@1": "hd1",
    "ECE": "{finest}/ece",
    "CPU s": "cpu_seconds",
}


def train(study: Study, name: str, remedy: str, seed: int, epochs: int) -> Measures:
    """Train one remedy with a seed. Return the measures of the validation photographs, and the CPU seconds of both stages."""
    first, second = REMEDIES[remedy]
    fixed = ["experiment=photos", *SETS[name].settings(study.manifest(name, seed)), *COMMON, "data.image_size=64", f"seed={seed}"]

    def work(folder: Path) -> dict[str, Measures]:
        seconds = train_ours(folder / "first", [*fixed, *first, f"trainer.length={epochs}epochs"])
        last = folder / "first"
        if second:
            last = folder / "second"
            given = [f"run.init_from={folder / 'first' / 'run'}", f"trainer.length={max(epochs // 4, 1)}epochs"]
            seconds += train_ours(last, [*fixed, *second, *given])
        return {"val": evaluate(last, "validation"), "cost": {"cpu_seconds": seconds}}

    found = study.once(name, [remedy, f"{epochs}", f"{seed}"], work)
    return found["val"] | found["cost"]


def table(finest: str, results: dict[str, list[Measures]]) -> list[str]:
    """Return the lines of the table: means over the seeds, then the differences from `natural`.

    finest: finest rank. results: remedy -> measures, one entry per seed."""
    keys = {title: key.format(finest=finest) for title, key in KEYS.items()}
    lines = [f"| | {' | '.join(keys)} |", f"|---|{'---:|' * len(keys)}"]
    for remedy, rows in results.items():
        cells = [shown(key, float(np.mean([row.get(key, np.nan) for row in rows]))) for key in keys.values()]
        lines.append(f"| {remedy} | {' | '.join(cells)} |")
    if NATURAL in results and len(results[NATURAL]) > 1:
        for remedy, rows in results.items():
            if remedy != NATURAL:
                lines.append(f"| {remedy} - {NATURAL} | {' | '.join(compared(key, rows, results[NATURAL]) for key in keys.values())} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the sets")
    parser.add_argument("--set", default="plants3900", choices=list(SETS), help="set of photographs (%(default)s)")
    parser.add_argument("--remedies", nargs="+", default=list(REMEDIES), choices=list(REMEDIES), metavar="NAME", help="%(choices)s")
    parser.add_argument("--epochs", type=int, default=12, help="epochs of the first stage; the second has a quarter (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (%(default)s)")
    parser.add_argument("--parallel", type=int, default=1, help="trials at once, a core each")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file of the finished trials (%(default)s)")
    o = parser.parse_args()
    pairs = [(remedy, seed) for seed in range(o.seeds) for remedy in o.remedies]
    with tempfile.TemporaryDirectory(prefix="recipes-") as root, ThreadPoolExecutor(o.parallel) as pool:
        study = Study(o.results.resolve(), o.data.resolve(), Path(root))
        found = dict(zip(pairs, pool.map(lambda pair: train(study, o.set, *pair, o.epochs), pairs), strict=True))
    results = {remedy: [found[remedy, seed] for seed in range(o.seeds)] for remedy in o.remedies}
    print(f"\n{o.set}, validation photographs, {o.epochs} epochs of 64 px\n\n" + "\n".join(table(SETS[o.set].finest, results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
