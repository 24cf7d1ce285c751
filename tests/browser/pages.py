"""Make short runs of every workload with the command line, and return the pages that the program writes for them.

Each run has all the sections of its workload. `DATA` is the folder of the real data (`make test-browser DATA=FOLDER`); without it the
pages of real photographs and of a real text are left out.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests import runs

COMMON = ["trainer.device=cpu", "trainer.threads=1", "trainer.num_workers=0", "logger.console=plain", "schedule.report=[20%]"]
SAMPLES = ["data.train_samples=800", "data.validation_samples=200", "schedule.validate=[1epochs]"]
BIOTA = [*SAMPLES, "trainer.length=3epochs"]
SIX = [*SAMPLES, "trainer.length=1epochs", "seed=1,2,3", "optimizer.lr=0.001,0.004"]
ROWS = 1_000_000


def make_pages(folder: Path, data: Path | None) -> dict[str, Path]:
    """Train the runs in `folder`, or use those of an earlier call. Return name of the page -> its file.

    data: folder with `plants480` and `text/tinyshakespeare.txt`, or None."""
    runs_of = {"biota": BIOTA}
    runs_of["loadout"] = ["workload=loadout", "trainer.length=300steps", "schedule.validate=[100steps]"]
    if data is not None:
        photographs = ["experiment=plants480", f"data.path={data / 'plants480' / 'manifest.csv'}", "data.split_seed=0"]
        runs_of["photographs"] = [*photographs, "trainer.length=6epochs", "schedule.validate=[2epochs]"]
        text = ["experiment=shakespeare_char_cpu", f"data.path={data / 'text' / 'tinyshakespeare.txt'}"]
        runs_of["text"] = [*text, "trainer.length=200steps", "schedule.validate=[100steps]"]
    pages = {name: train(folder, name, *words) / "report.html" for name, words in runs_of.items()}
    clades = ["workload=dictionary", f"dictionary.run={folder / 'biota' / 'run'}", "dictionary.module=norm", "model.features=256"]
    clades += ["model.k=2", "trainer.length=200steps", "data.samples=800", "dictionary.report_samples=800"]
    pages["clades"] = train(folder, "clades", *clades) / "report.html"
    if data is not None:
        reading = ["workload=dictionary", f"dictionary.run={folder / 'text' / 'run'}", "dictionary.module=blocks.1"]
        pages["dictionary"] = train(folder, "dictionary", *reading, "trainer.length=60steps", "data.samples=200") / "report.html"
    pages["comparison"] = compare(folder)
    pages["killed"] = kill(folder)
    pages["million"] = lengthen(folder)
    return pages


def program(*words: str) -> None:
    """Run a command of the program, without its usual output. Raise `CalledProcessError` if it fails."""
    subprocess.run([sys.executable, *words], cwd=runs.ROOT, check=True, stdout=subprocess.DEVNULL)


def words_of(folder: Path, name: str, words: Sequence[str]) -> list[str]:
    return ["main.py", *words, *COMMON, f"run.root={folder}", f"run.experiment={name}", "run.name=run"]


def train(folder: Path, name: str, *words: str) -> Path:
    """Train the run `name` in `folder` if it has no report yet. Return its directory."""
    run = folder / name / "run"
    if not (run / "report.html").exists():
        program(*words_of(folder, name, words))
    return run


def compare(folder: Path) -> Path:
    """Train six runs, two learning rates with three seeds each. Return the page that compares them, in the folder of their sweep."""
    finished = [*(folder / "sweeps").glob("*/sweep.svg")]
    if not finished:
        program("main.py", "-m", *SIX, *COMMON, f"run.root={folder}", "run.experiment=sweeps")
        finished = [*(folder / "sweeps").glob("*/sweep.svg")]
    sweep = finished[0].parent
    program("-m", "linnaeus", "report", str(sweep))
    return sweep / "comparison.html"


def kill(folder: Path) -> Path:
    """Start a run, kill it with SIGKILL after its first validation, and return the page that is written afterwards."""
    run = folder / "killed" / "run"
    page = run / "report.html"
    if not page.exists():
        words = words_of(folder, "killed", [*SAMPLES, "trainer.length=50epochs"])
        process = subprocess.Popen([sys.executable, *words], cwd=runs.ROOT, stdout=subprocess.DEVNULL)
        while not any((run / "validation").glob("step-*/")):
            assert process.poll() is None, "the run ended before its first validation"
            time.sleep(0.2)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        program("-m", "linnaeus", "report", str(run))
    return page


def lengthen(folder: Path) -> Path:
    """Return the page of a run with a million rows."""
    run = folder / "million" / "run"
    page = run / "report.html"
    if not page.exists():
        train(folder, "million", *BIOTA)
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        last, training = rows[-1]["global_step"], next(row for row in rows if "train/loss" in row)
        with (run / "metrics.jsonl").open("a") as file:
            for step in range(last + 1, ROWS + 1):
                file.write(json.dumps({**training, "global_step": step, "train/loss": 1 + 1 / step}) + "\n")
        page.unlink()
        program("-m", "linnaeus", "report", str(run))
    return page
