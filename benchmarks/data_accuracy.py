"""Compare the accuracy of runs whose photographs are decoded and resized by Pillow, by the fast path of linnaeus, and on the device.

    python -m benchmarks.data_accuracy biota                                                    40 minutes on one core
    python -m benchmarks.data_accuracy plants480 data.path=FOLDER/plants480/manifest.csv        50 minutes on one core
    python -m benchmarks.data_accuracy biota --seeds 0 1 trainer.length=1epochs                 a short trial

Each of the three trains a run per seed; for plants480 the seed also chooses the split. The table shows the difference to Pillow at each
rank, in points, paired by seed, with its 95 % interval (Student's t). The pixels differ by at most one level of 255, but two trainings that
differ in one bit diverge, so the interval is as wide as that of two trainings with other seeds. Therefore the weights trained with the fast
path are also evaluated with both kinds of pixels: that difference has no such noise. Bar: 0.3 points.

Each trial is `python main.py` in its own process with one thread. If the command is stopped, the same command continues.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.heads import ROOT, Difference, Results, Study
from benchmarks.machine import describe_machine, write_numbers

PILLOW, FAST, DEVICE = "Pillow", "fast path", "fast path, augmented on the device"
BY_PILLOW = "plugins=[benchmarks.pillow_pixels]"
PATHS = {PILLOW: [BY_PILLOW], FAST: [], DEVICE: ["augment.place=device"]}
RANKS = {"biota": ("species", "genus", "family"), "plants480": ("species", "genus", "family")}
CROPS = ["augment.crop_scale=[0.3,1.0]"]  # without resizing, all paths would have the same pixels
BAR = 0.3  # points


def scored_again(run: Path, words: Sequence[str]) -> dict[str, float]:
    """Return the validation metrics of the newest weights of a run, evaluated with the settings `words`.

    Raise `SystemExit` with the error output if that fails."""
    output = run / f"scored-{'pillow' if BY_PILLOW in words else 'fast'}"
    if not (output / "metrics.json").exists():
        command = [sys.executable, "-m", "linnaeus", "evaluate", str(run), "--checkpoint", "newest", "--output", str(output), *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    metrics: dict[str, float] = json.loads((output / "metrics.json").read_text())["metrics"]
    return {key.removeprefix("val/"): value for key, value in metrics.items()}


def row(title: str, ours: list[dict[str, float]], theirs: list[dict[str, float]], ranks: Sequence[str]) -> tuple[str, float]:
    """Return (a line of the table, the largest loss of accuracy at any rank in points). `theirs`: results with Pillow."""
    cells, losses = [], []
    for rank in ranks:
        d = Difference.of(*([100 * one[f"{rank}/top1"] for one in rows] for rows in (ours, theirs)))
        losses.append(-d.mean)
        cells.append(f"{np.mean([100 * one[f'{rank}/top1'] for one in ours]):.2f} | {d.mean:+.2f} ({d.low:+.2f} to {d.high:+.2f})")
    return f"| {title} | {' | '.join(cells)} |", max(losses)


def table(results: Results, again: dict[str, list[dict[str, float]]], ranks: Sequence[str]) -> tuple[list[str], float]:
    """Return (the lines of the table, the largest loss of accuracy of the same weights in points).

    `again`: the weights trained with the fast path, evaluated with both kinds of pixels."""
    lines = [f"| | {' | '.join(f'{rank} | - Pillow' for rank in ranks)} |", f"|---|{'---:|' * (2 * len(ranks))}"]
    lines += [row(path, rows, results[PILLOW], ranks)[0] for path, rows in results.items()]
    line, loss = row("weights of the fast path, scored on it", again[FAST], again[PILLOW], ranks)
    return [*lines, line], loss


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=list(RANKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], metavar="SEED")
    parser.add_argument("--parallel", type=int, default=1, help="trials at once, a core each")
    parser.add_argument("--root", type=Path, default=ROOT / "outputs" / "data_accuracy", help="where the runs are")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    options, overrides = parser.parse_known_args()
    study = Study(options.data, [*CROPS, *overrides], options.root.resolve(), options.parallel, PATHS)
    results = study.run(list(PATHS), options.seeds)
    runs = [study.folder(FAST, seed) for seed in options.seeds]
    again = {FAST: [scored_again(run, []) for run in runs], PILLOW: [scored_again(run, [BY_PILLOW]) for run in runs]}
    lines, loss = table(results, again, RANKS[options.data])
    print(f"\n{options.data}, validation rows, seeds {', '.join(map(str, options.seeds))}, top-1\n\n" + "\n".join(lines))
    print(f"\nthe same weights lose at most {loss:.2f} points on the fast path, bar {BAR}: {'held' if loss <= BAR else 'MISSED'}")
    if options.json:
        write_numbers(options.json, {"machine": describe_machine(), "trained": results, "same weights": again, "loss": loss})
    return int(loss > BAR)


if __name__ == "__main__":
    sys.exit(main())
