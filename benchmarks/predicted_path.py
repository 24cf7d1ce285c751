"""Accuracy of the predicted path of finished taxonomy runs at every rank, beside the path to the most probable leaf.

    python -m benchmarks.predicted_path RUN...          runs of one set of photographs, with a hierarchical head

Both paths come from the same probabilities, for the validation rows of each run. `heads/decision.py` defines the predicted path.
Differences are means over the runs, with the 95 % interval of Student's t.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.heads import Difference
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.observations.components import encode
from linnaeus.workloads.taxonomy.trained.calibrate.labelled import of_run
from linnaeus.workloads.taxonomy.trained.classifier.load_parts import load_model
from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier

BATCH = 64


def accuracies(model: TrainedClassifier, run: Path) -> np.ndarray:
    """Return the accuracy at each rank in the validation rows of a run, float64 [2, R]: row 0 is the path to the most probable leaf, row 1
    the predicted path."""
    data = of_run(run, "validation", model.tree, model.components)
    first, last = model.tree.offsets[-2:]
    leaves = torch.from_numpy(model.tree.paths[first:last])
    found: list[np.ndarray] = []
    with torch.inference_mode():
        for rows in np.array_split(np.arange(len(data)), -(-len(data) // BATCH)):
            batch = model.batch([data.read(int(row)) for row in rows], *encode(data.metadata.take(rows), model.components))
            scores = model.scores(model.preparation(batch))
            most_probable = leaves[scores.log_probs()[-1][:, : last - first].argmax(1)]
            found.append(torch.stack([most_probable, scores.path()]).numpy())
    right = np.concatenate(found, 1) == data.labels
    known = data.labels >= 0
    accuracy: np.ndarray = (right & known).sum(1) / known.sum(0)
    return accuracy


def table(ranks: Sequence[str], results: Sequence[np.ndarray]) -> list[str]:
    """Return the lines of the means over the runs and of their differences, in percent. `results`: of `accuracies`, one per run."""
    percent = 100 * np.stack(results)  # [runs, 2, R]
    lines = [f"| {len(results)} runs | {' | '.join(ranks)} |", "|---|" + "---:|" * len(ranks)]
    for title, mean in zip(("most probable leaf", "predicted path"), percent.mean(0), strict=True):
        lines.append(f"| {title} | {' | '.join(f'{value:.1f}' for value in mean)} |")
    differences = [Difference.of(percent[:, 1, r].tolist(), percent[:, 0, r].tolist()) for r in range(len(ranks))]
    return [*lines, f"| difference | {' | '.join(f'{d.mean:+.2f} ({d.low:+.2f} to {d.high:+.2f})' for d in differences)} |"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    results, ranks = [], None
    for run in parser.parse_args().runs:
        try:
            model = load_model(run)
        except ConfigError as error:
            print(f"{run}: {error}", file=sys.stderr)
            continue
        if ranks not in (None, model.tree.ranks):
            parser.error(f"{run} has other ranks than the runs before it")
        ranks = model.tree.ranks
        results.append(accuracies(model, run))
    if ranks is None:
        parser.error("none of the runs can be loaded")
    print("\n".join(table(ranks, results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
