"""Train with linnaeus, keep finished trials in a file, and judge differences between programs that are paired by seed."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import main as program
from benchmarks.heads import Difference
from linnaeus import train as training
from linnaeus.config.load import compose

Measures = dict[str, float]


class TrialFile:
    """File with a line for each finished trial: what identifies it, and its measures."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def find(self, trial: Mapping[str, Any]) -> Measures | None:
        """Return the measures of a trial, or None if it is not finished. trial: all that its result depends on."""
        wanted = json.loads(json.dumps(trial))
        for line in self.path.read_text().splitlines() if self.path.exists() else []:
            finished = json.loads(line)
            if all(finished.get(key) == value for key, value in wanted.items()):
                return finished["measures"]
        return None

    def add(self, trial: Mapping[str, Any], measures: Measures, title: str, shown: Sequence[str]) -> None:
        """Append a finished trial, and print its title and the measures named in `shown`."""
        with self.path.open("a") as file:
            file.write(json.dumps({**trial, "measures": measures}) + "\n")
        figures = ", ".join(f"{key} {measures[key]:.3g}" for key in shown if key in measures)
        print(f"{title}: {figures}", file=sys.stderr, flush=True)


def train(overrides: Sequence[str], folder: Path) -> tuple[Path, Measures]:
    """Train with `main.py`, in this process, quietly. Return the run directory, and the `cpu_seconds` and `wall_seconds` of the updates:
    the epochs of the loop, without start, storing of activations and final validation.

    folder: place of the run and of its messages, output.txt."""
    place = [f"run.root={folder.parent}", f"run.experiment={folder.name}", "run.name=run", "logger.console=quiet", "logger.report=false"]
    folder.mkdir(parents=True, exist_ok=True)
    seconds, one_epoch = {"cpu_seconds": 0.0, "wall_seconds": 0.0}, training.train_one_epoch

    def timed(state: Any, epoch: int) -> None:
        cpu, wall = time.process_time(), time.perf_counter()
        one_epoch(state, epoch)
        seconds["cpu_seconds"] += time.process_time() - cpu
        seconds["wall_seconds"] += time.perf_counter() - wall

    patched = mock.patch.object(training, "train_one_epoch", timed)
    with (folder / "output.txt").open("w") as output, contextlib.redirect_stdout(output), patched:
        ended = program.run(compose([*overrides, *place]))
    assert ended == program.EXIT_FINISHED, (folder / "output.txt").read_text()
    return folder / "run", seconds


# -- verdicts --------------------------------------------------------------------------------------------------------------------


def means(found: Sequence[Measures]) -> Measures:
    """Return the mean over the seeds of each measure that all of them have; older lines have fewer measures."""
    return {key: float(np.mean([row[key] for row in found])) for key in found[0] if all(key in row for row in found)}


def difference(ours: Sequence[Measures], theirs: Sequence[Measures], column: str) -> Difference:
    return Difference.of(*([row[column] for row in rows] for rows in (ours, theirs)))


def at_least(d: Difference, bar: float, seeds: int, needed: int) -> str:
    """Return the verdict on a difference that should be at least `bar`: missed only if its whole interval is below. needed: number of
    seeds with which there is a verdict."""
    if seeds < needed:
        return f"no verdict under {needed} seeds"
    return "held" if d.low >= bar else "MISSED" if d.high < bar else "open: the interval covers the bar"


def held(good: bool) -> str:
    return "held" if good else "MISSED"
