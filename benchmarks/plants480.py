"""Compare the accuracy on a real manifest of 480 plant photographs with the majority class and with ridge regression on 16x16 pixels.

    python -m benchmarks.plants480 FOLDER/manifest.csv [--splits 0 1 2] [--json FILE] [OVERRIDE ...]

Trains `experiment=plants480` once per split (at most 10 CPU minutes each), evaluates both baselines on the same split, and prints the
means with the standard error of the paired difference. Exits with status 1 if the classifier is below the better baseline at any rank, or
not two standard errors above it at genus and species.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import write_numbers
from linnaeus.config import compose
from linnaeus.workloads.taxonomy.manifest import build_source
from linnaeus.workloads.taxonomy.observations import TRAIN, VALIDATION, Source

SIDE = 16
PENALTIES = 10.0 ** np.arange(0, 7)
MUST_WIN = ("genus", "species")


def thumbnails(source: Source) -> np.ndarray:
    """Return the pixels of every photograph resized to 16x16, in [0, 1], float64 [N, 768]."""
    from PIL import Image

    images = source.images.read(np.arange(len(source.ids)))
    small = [np.asarray(Image.fromarray(i).resize((SIDE, SIDE), Image.Resampling.BOX)) for i in images]
    return np.stack(small).reshape(len(images), -1) / 255.0


def ridge_predictions(x: np.ndarray, y: np.ndarray, x_new: np.ndarray, classes: int) -> np.ndarray:
    """Fit ridge regression on one-hot targets to `x` [N, D] and `y` [N]. Return the predicted classes of `x_new`.

    The penalty is the one with the best leave-one-out accuracy on the training rows, computed from the residuals e / (1 - h) (Allen 1974).
    """
    mean = x.mean(0)
    u, s, vt = np.linalg.svd(x - mean, full_matrices=False)
    targets = np.eye(classes)[y]
    centre = targets.mean(0)
    best = (-1.0, PENALTIES[0])
    for penalty in PENALTIES:
        shrink = s**2 / (s**2 + penalty)
        fitted = centre + u @ (shrink[:, None] * (u.T @ (targets - centre)))
        leverage = 1 / len(x) + (u**2 * shrink).sum(1, keepdims=True)
        left_out = targets - (targets - fitted) / (1 - leverage)
        best = max(best, (float((left_out.argmax(1) == y).mean()), penalty))
    weights = vt.T @ ((s / (s**2 + best[1]))[:, None] * (u.T @ (targets - centre)))
    return (centre + (x_new - mean) @ weights).argmax(1)


def baselines(source: Source) -> dict[str, dict[str, float]]:
    """Return {baseline: {rank: validation accuracy}} for both baselines."""
    pixels = thumbnails(source)
    train, new = source.split == TRAIN, source.split == VALIDATION
    results: dict[str, dict[str, float]] = {"majority": {}, "ridge 16x16": {}}
    for r, rank in enumerate(source.tree.ranks):
        known, asked = train & (source.labels[:, r] >= 0), new & (source.labels[:, r] >= 0)
        y, truth = source.labels[known, r], source.labels[asked, r]
        results["majority"][rank] = float((truth == np.bincount(y).argmax()).mean())
        guess = ridge_predictions(pixels[known], y, pixels[asked], source.tree.sizes[r])
        results["ridge 16x16"][rank] = float((truth == guess).mean())
    return results


def train(overrides: list[str], root: str) -> dict[str, float]:
    """Train a run of the real program with these settings. Return {rank: top-1 validation accuracy}."""
    import main

    config = compose(overrides)
    config = dataclasses.replace(config, run=dataclasses.replace(config.run, root=root))
    main.run(config)
    summary = json.loads(next(Path(root).rglob("summary.json")).read_text())
    return {
        key.split("/")[1]: value
        for key, value in summary["final"].items()
        if key.startswith("val") and key.endswith("/top1") and "mask" not in key
    }


def one_split(manifest: str, split: int, overrides: list[str]) -> dict[str, dict[str, float]]:
    chosen = ["experiment=plants480", f"data.path={manifest}", f"data.split_seed={split}", f"seed={split}", *overrides]
    results = baselines(build_source(compose(chosen).data))
    with tempfile.TemporaryDirectory() as root:
        results["linnaeus"] = train(chosen, root)
    return results


def table(splits: list[dict[str, dict[str, float]]]) -> tuple[list[str], bool]:
    """Return (the lines of the table, True if the bar is met)."""
    ranks = list(splits[0]["majority"])
    lines = [f"{'rank':10s}{'majority':>10s}{'ridge':>10s}{'linnaeus':>10s}{'difference':>12s}{'2 s.e.':>8s}"]
    passed = True
    for rank in ranks:
        mean: dict[str, Any] = {name: np.array([s[name][rank] for s in splits]) for name in splits[0]}
        better = max(("majority", "ridge 16x16"), key=lambda name: mean[name].mean())
        difference = mean["linnaeus"] - mean[better]
        error = 2 * difference.std(ddof=1) / np.sqrt(len(splits)) if len(splits) > 1 else 0.0
        passed &= bool(difference.mean() > error) if rank in MUST_WIN else bool(difference.mean() >= 0)
        cells = "".join(f"{100 * mean[name].mean():10.1f}" for name in ("majority", "ridge 16x16", "linnaeus"))
        lines.append(f"{rank:10s}{cells}{100 * difference.mean():+12.1f}{100 * error:8.1f}")
    return lines, passed


def main_command() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("manifest")
    parser.add_argument("--splits", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json")
    arguments, overrides = parser.parse_known_args()
    splits = [one_split(arguments.manifest, split, overrides) for split in arguments.splits]
    lines, passed = table(splits)
    print("\n".join(lines))
    if arguments.json:
        write_numbers(Path(arguments.json), splits)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main_command())
