"""Run trials in separate processes and measure their CPU time. The results are lines of one file, so that a stopped study can continue."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe_machine
from benchmarks.recipes.recipe_list import COMMON
from benchmarks.recipes.scoring import score_logits
from benchmarks.recipes.sets import SETS, write_manifest

ROOT = Path(__file__).resolve().parents[2]
MEASURED = 0.25  # share of the CPU time that the measurement of an epoch takes
MARGIN = 0.98  # share of the CPU time that is planned
KEPT = ("top1", "macro_top1", "ece", "many", "medium", "few", "hd1", "chain")  # last words of the measures that a line of the results has
Measures = dict[str, float]


@dataclass(frozen=True)
class Study:
    """Trials with equal CPU time. `results`: file of the finished trials, a line each. `data`: folder of the sets. `root`: folder for the
    manifests and the running trials.

    `cpu_seconds`: CPU time of a training as a whole, or None for that of the set. `unlabelled`: share of the training samples without their
    label at the finest rank. `unseen`: share of the finest classes that are left out (`sets.without_classes`)."""

    results: Path
    data: Path
    root: Path
    cpu_seconds: float | None = None
    unlabelled: float = 0.0
    unseen: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock, compare=False, repr=False)

    def seconds(self, name: str) -> float:
        """Return the CPU time of a training on the set `name`."""
        return SETS[name].cpu_seconds if self.cpu_seconds is None else self.cpu_seconds

    def manifest(self, name: str, seed: int) -> Path:
        """Write the manifest of the set `name` with the split for `seed`. Return its path."""
        with self.lock:
            folder = self.root / f"{name}-{self.unlabelled:g}-{self.unseen:g}"
            return write_manifest(SETS[name], self.data / name, folder, seed, self.unlabelled, self.unseen)

    def plain(self, name: str, hierarchical: bool, settings: Sequence[str], seed: int) -> dict[str, Measures]:
        """Train the plain script on the set `name`. Return {split: measures}, and the CPU seconds under "cost".

        `hierarchical`: with a classifier per rank instead of a flat one."""
        own, manifest = SETS[name], self.manifest(name, seed)
        ranks = list(own.ranks) if hierarchical else [own.finest]

        def train(folder: Path) -> dict[str, Measures]:
            out = folder / "scores.npz"
            words = ["--ranks", *ranks, "--cpu-seconds", f"{self.seconds(name)}", "--seed", f"{seed}", "--out", f"{out}", *settings]
            seconds = run_child([sys.executable, "-m", "benchmarks.recipes.plain_script", str(manifest), *words], folder)
            with np.load(out) as scores:
                found = {split: score_logits(own.settings(manifest), scores, ranks, split) for split in ("val", "test")}
            out.unlink()
            return found | {"cost": {"cpu_seconds": seconds}}

        return self.once(name, ["plain", *ranks, *settings, f"{seed}"], train)

    def ours(self, name: str, overrides: Sequence[str], seed: int) -> dict[str, Measures]:
        """Train linnaeus on the set `name` for as many epochs as the CPU time allows. Return the same as `plain`."""
        fixed = [*SETS[name].settings(self.manifest(name, seed)), *COMMON, f"seed={seed}"]
        epochs = self._epochs(name, [*SETS[name].settings(self.manifest(name, 0)), *COMMON], overrides)

        def train(folder: Path) -> dict[str, Measures]:
            seconds = train_ours(folder, [*fixed, *overrides, f"trainer.length={epochs}epochs"])
            found = {short: evaluate(folder, split) for short, split in (("val", "validation"), ("test", "test"))}
            return found | {"cost": {"cpu_seconds": seconds, "epochs": epochs}}

        return self.once(name, [*overrides, f"{seed}"], train)

    def _epochs(self, name: str, fixed: Sequence[str], overrides: Sequence[str]) -> int:
        """Return the number of epochs that fit into the CPU time.

        The time of an epoch is measured by two short runs, one epoch and more, and then by every finished trial of the same settings. The
        second run is made longer until its further epochs take `MEASURED` of the CPU time: shorter ones gave twice the epochs that fit."""

        def measure(folder: Path) -> dict[str, Measures]:
            short = train_ours(folder / "short", [*fixed, *overrides, "trainer.length=1epochs"])
            more = 2
            while True:
                long = train_ours(folder / f"long{more}", [*fixed, *overrides, f"trainer.length={1 + more}epochs"])
                epoch = max(long - short, 1e-2) / more
                if long - short >= 0.6 * MEASURED * self.seconds(name) or more >= MEASURED * self.seconds(name) / epoch:
                    break
                more = int(MEASURED * self.seconds(name) / epoch)
            return {"cost": {"epoch": epoch, "rest": max(short - epoch, 0.0), "epochs": more}}

        cpu = describe_machine()["cpu"]  # the times of another make of CPU are not used
        cost = self.once(name, ["length", cpu, *overrides], measure)["cost"]
        trials = [
            line["cost"] for line in self._lines() if line["set"] == name and line["words"][:-1] == [*overrides] and line["cpu"] == cpu
        ]
        epochs = sum((trial["epochs"] for trial in trials), cost["epochs"])
        seconds = sum((trial["cpu_seconds"] - cost["rest"] for trial in trials), cost["epochs"] * cost["epoch"])
        return max(int((MARGIN * self.seconds(name) - cost["rest"]) / (seconds / epochs)), 1)

    def _lines(self) -> list[dict[str, Any]]:
        """Return the finished trials of the file of results."""
        return [json.loads(line) for line in self.results.read_text().splitlines()] if self.results.exists() else []

    def once(self, name: str, words: Sequence[str], work: Callable[[Path], dict[str, Measures]]) -> dict[str, Measures]:
        """Return the result of a trial; `name` and `words` identify it.

        If the file of results has it, return that. Otherwise call `work` with a new folder, and append its result to the file."""
        trial = {"set": name, "cpu_seconds": self.seconds(name), "unlabelled": self.unlabelled, "unseen": self.unseen, "words": [*words]}
        for finished in self._lines():
            if all(finished[key] == value for key, value in trial.items()):
                return {key: finished[key] for key in ("val", "test", "cost") if key in finished}
        with tempfile.TemporaryDirectory(dir=self.root) as folder:
            found = {key: kept(measures) if key != "cost" else measures for key, measures in work(Path(folder)).items()}
        with self.lock, self.results.open("a") as file:
            file.write(json.dumps(trial | {"cpu": describe_machine()["cpu"]} | found) + "\n")
        print(f"{name} {' '.join(words)}", file=sys.stderr, flush=True)
        return found


def kept(measures: Measures) -> Measures:
    """Return the measures that the tables show, to six digits."""
    return {name: float(f"{value:.6g}") for name, value in measures.items() if name.rpartition("/")[2] in KEPT}


def train_ours(folder: Path, overrides: Sequence[str]) -> float:
    """Train a run of linnaeus in `folder`. Return the CPU seconds."""
    place = [f"run.root={folder.parent}", f"run.experiment={folder.name}", "run.name=run"]
    return run_child([sys.executable, "main.py", *place, *overrides], folder)


def evaluate(folder: Path, split: str, masked: bool = False) -> Measures:
    """Evaluate the best checkpoint of the run in `folder` on the samples of `split`. Return the measures.

    `masked`: evaluate also with all metadata masked, if the model reads metadata; these measures begin with `masked/`."""
    out = folder / split
    also = ["schedule.validate_mask_meta=[100%]"] if masked else []
    run_child([sys.executable, "-m", "linnaeus", "evaluate", str(folder / "run"), "--split", split, "--output", str(out), *also], folder)
    metrics = json.loads((out / "metrics.json").read_text())["metrics"]
    ema = "_ema" if any(name.startswith("val_ema/") for name in metrics) else ""
    found = {f"val{ema}/": "", f"val{ema}_mask_meta/": "masked/"}
    return {
        new + name.removeprefix(old): v
        for old, new in found.items()
        for name, v in metrics.items()
        if name.startswith(old) and v is not None
    }


def run_child(command: Sequence[str], folder: Path) -> float:
    """Run a command in the directory of the repository. Return its CPU seconds.

    Raise `SystemExit` with the end of its output if it fails."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with (folder / "output.txt").open("w") as output:
        child = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(command)}\n{(folder / 'output.txt').read_text()[-3000:]}")
    return usage.ru_utime + usage.ru_stime
