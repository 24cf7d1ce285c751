"""Compare variants of `experiment=photos` on the validation photographs: long tails, taxonomic ranks, metadata, places, missing labels,
regularisation.

    python -m benchmarks.recipes.variants --data FOLDER                          plants3900, 12 epochs, 3 seeds, every group
    python -m benchmarks.recipes.variants --data FOLDER --groups tail ranks --parallel 2

A group is a table: `photos` without changes (in `places` without metadata), and variants of it. `tail` has remedies for long-tailed
classes: resampling, logit adjustment, and two stages, of which the second starts with the weights of the first and trains the heads alone.
`ranks` has the finest rank alone, and other heads, losses and weights of the ranks. `metadata` has a model that never reads them, and
models whose backbone learns from them, too. `places` adds coordinates to the photographs, drawn from ranges of the species in a region of
100 km. `labels` has other heads, losses and weights of the ranks, too, on photographs of which half have no label at the finest rank.
`regularisation` has averaged weights, more decay, dropout, stochastic depth, erasing, mixing, and an end without augmentation.

Every variant has the same number of epochs and images of 64 px, on one thread; a second stage is trained in addition. Accuracies are those
of the finest rank: of all validation photographs (top-1), without their metadata (masked), the mean over classes (macro), and the means
over classes with more than 100, 20 to 100 and fewer than 20 training photographs. Differences from the first variant are paired by seed,
with the 95 % interval of Student's t. Every finished trial is a line of `--results`, and is not repeated.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.recipes.__main__ import compared, shown
from benchmarks.recipes.drawn_places import Places, with_places
from benchmarks.recipes.recipe_list import COMMON
from benchmarks.recipes.sets import SETS
from benchmarks.recipes.trials import Measures, Study, evaluate, train_ours

RESULTS = Path("benchmarks/results/variants.jsonl")
UNCHANGED = "photos"


class Variant(NamedTuple):
    """Settings of a training, KEY=VALUE. second: settings of a second stage; () without one. places: coordinates that are added to the
    photographs. `{finest}` is the finest rank of the set, and `{most}` the weight with which this rank has 60 % of the sum of the
    weights."""

    settings: Sequence[str] = ()
    second: Sequence[str] = ()
    places: Places | None = None


HEADS_ALONE = ("data.sampling=class_balanced", "trainer.freeze=[trunk,norm]")
EVERY_LABEL = "loss.coarser_share=null"
JOINT = "model.fusion=joint"
SPATIAL = "data.components=[SPATIAL]"
FINEST_RANK = "weighting.weights={{{finest}:{most}}}"
GROUPS: dict[str, dict[str, Variant]] = {
    "tail": {
        UNCHANGED: Variant(),
        "square root of the counts": Variant(["data.sampling=square_root"]),
        "class balanced": Variant(["data.sampling=class_balanced"]),
        "logit adjustment 0.5": Variant(["loss.logit_adjustment=0.5"]),
        "logit adjustment 1": Variant(["loss.logit_adjustment=1.0"]),
        "two stages, new heads": Variant(second=[*HEADS_ALONE, "run.init_skip=[head]"]),
        "two stages, the same heads": Variant(second=HEADS_ALONE),
    },
    "ranks": {
        UNCHANGED: Variant(),
        "finest rank alone": Variant(["data.ranks=[{finest}]", "head=linear"]),
        "every label counts once": Variant([EVERY_LABEL]),
        "the same, 60 % for the finest rank": Variant([EVERY_LABEL, FINEST_RANK]),
        "finest label alone": Variant(["loss.coarser_share=0.0"]),
        "linear": Variant(["head=linear"]),
        "conditional": Variant(["head=conditional"]),
        "without smoothing": Variant(["loss.label_smoothing=0.0"]),
    },
    "metadata": {
        UNCHANGED: Variant(),
        "never read": Variant(["data.components=[]"]),
        "joint, 15 % masked": Variant([JOINT, "schedule.meta_mask_prob.start=0.15", "schedule.meta_mask_prob.end=0.15"]),
        "joint, 50 % masked": Variant([JOINT, "schedule.meta_mask_prob.start=0.5", "schedule.meta_mask_prob.end=0.5"]),
    },
    "places": {
        "no places": Variant(["data.components=[]"]),
        "places": Variant([SPATIAL], places=Places()),
        "places, narrow ranges": Variant([SPATIAL], places=Places(world="narrow")),
        "places of a third": Variant([SPATIAL], places=Places(share=1 / 3)),
        "shuffled places": Variant([SPATIAL], places=Places(shuffled=True)),
    },
    "labels": {
        UNCHANGED: Variant(),
        "every label counts once": Variant([EVERY_LABEL]),
        "the same, 60 % for the finest rank": Variant([EVERY_LABEL, FINEST_RANK]),
        "finest known label alone": Variant(["loss.coarser_share=0.0"]),
        "linear": Variant(["head=linear"]),
        "without smoothing": Variant(["loss.label_smoothing=0.0"]),
    },
    "regularisation": {
        UNCHANGED: Variant(),
        "average of the weights": Variant(["trainer.ema_decay=0.99"]),
        "weight decay 0.2": Variant(["optimizer.weight_decay=0.2"]),
        "dropout 0.2": Variant(["model.dropout=0.2"]),
        "stochastic depth 0.1": Variant(["model.drop_path=0.1"]),
        "erasing 0.25": Variant(["augment.erasing=0.25"]),
        "mixup and cutmix, half": Variant(["schedule.mixup_prob.start=0.5", "schedule.mixup_prob.end=0.5"]),
        "last tenth without augmentation": Variant(["augment.off_last=10%"]),
    },
}
UNLABELLED = {"labels": 0.5}  # group -> share of the training photographs without a label at the finest rank
KEYS = {
    "top-1": "{finest}/top1",
    "masked": "masked/{finest}/top1",
    "macro": "{finest}/macro_top1",
    "many": "{finest}/many",
    "medium": "{finest}/medium",
    "few": "{finest}/few",
    "HD@1": "hd1",
    "ECE": "{finest}/ece",
    "CPU s": "cpu_seconds",
}


def train(study: Study, name: str, variant: Variant, seed: int, epochs: int) -> Measures:
    """Train a variant with a seed. Return the measures of the validation photographs, and the CPU seconds of both stages.

    Measures of the pass with masked metadata begin with `masked/`. Without such a pass, the model does not read metadata, and the accuracy
    is that of the normal pass."""
    names = {"finest": SETS[name].finest, "most": 1.5 * (len(SETS[name].ranks) - 1)}
    first, second = ([text.format(**names) for text in settings] for settings in (variant.settings, variant.second))
    drawn = variant.places
    places = [] if drawn is None else [f"places={drawn.share:.2f},{drawn.shuffled},{drawn.world}"]

    def work(folder: Path) -> dict[str, Measures]:
        manifest = study.manifest(name, seed)
        if drawn is not None:
            manifest = with_places(SETS[name], manifest, drawn, seed, folder / "manifest.csv")
        fixed = ["experiment=photos", *SETS[name].settings(manifest), *COMMON, "data.image_size=64", f"seed={seed}"]
        seconds = train_ours(folder / "first", [*fixed, *first, f"trainer.length={epochs}epochs"])
        last = folder / "first"
        if second:
            last = folder / "second"
            given = [f"run.init_from={folder / 'first' / 'run'}", f"trainer.length={max(epochs // 4, 1)}epochs"]
            seconds += train_ours(last, [*fixed, *second, *given])
        return {"val": evaluate(last, "validation", masked=True), "cost": {"cpu_seconds": seconds}}

    found = study.once(name, [*first, *second, *places, f"{epochs}", f"{seed}"], work)
    key = KEYS["top-1"].format(finest=SETS[name].finest)
    return {f"masked/{key}": found["val"][key]} | found["val"] | found["cost"]


def train_group(study: Study, name: str, group: str, seeds: int, epochs: int, parallel: int) -> dict[str, list[Measures]]:
    """Train the variants of a group with the seeds 0, 1, ..., `parallel` trainings at once. Return {variant: measures of each seed}."""
    variants = GROUPS[group]
    todo = [(own, seed) for seed in range(seeds) for own in variants]
    with ThreadPoolExecutor(parallel) as pool:
        found = dict(zip(todo, pool.map(lambda one: train(study, name, variants[one[0]], one[1], epochs), todo), strict=True))
    return {own: [found[own, seed] for seed in range(seeds)] for own in variants}


def table(finest: str, results: Mapping[str, Sequence[Measures]]) -> list[str]:
    """Return the lines of the table: means over the seeds, then the differences from the first variant.

    finest: finest rank. results: name of the variant -> measures, one entry per seed. A measure without values is left out, such as the
    accuracy of classes with more than 100 training photographs if there are none."""
    base, keys = next(iter(results)), {title: key.format(finest=finest) for title, key in KEYS.items()}
    keys = {title: key for title, key in keys.items() if not all(np.isnan(row.get(key, np.nan)) for row in results[base])}
    lines = [f"| | {' | '.join(keys)} |", f"|---|{'---:|' * len(keys)}"]
    for name, rows in results.items():
        cells = [shown(key, float(np.mean([row.get(key, np.nan) for row in rows]))) for key in keys.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    if len(results[base]) > 1:
        for name, rows in results.items():
            if name != base:
                lines.append(f"| {name} - {base} | {' | '.join(compared(key, rows, results[base]) for key in keys.values())} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the sets")
    parser.add_argument("--set", default="plants3900", choices=list(SETS), help="set of photographs (%(default)s)")
    parser.add_argument("--groups", nargs="+", default=list(GROUPS), choices=list(GROUPS), help="tables to make (all)")
    parser.add_argument("--epochs", type=int, default=12, help="epochs of a training; a second stage has a quarter (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (%(default)s)")
    parser.add_argument("--parallel", type=int, default=1, help="trials at once, a core each")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file of the finished trials (%(default)s)")
    o = parser.parse_args()
    for group in o.groups:
        with tempfile.TemporaryDirectory(prefix="recipes-") as root:
            study = Study(o.results.resolve(), o.data.resolve(), Path(root), unlabelled=UNLABELLED.get(group, 0.0))
            results = train_group(study, o.set, group, o.seeds, o.epochs, o.parallel)
        title = f"\n{group}: {o.set}, validation photographs, {o.epochs} epochs of 64 px, seeds 0 to {o.seeds - 1}\n\n"
        print(title + "\n".join(table(SETS[o.set].finest, results)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
