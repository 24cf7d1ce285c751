"""`docs/extending.md` works as printed, outside the repository: every part trains, resumes and is in --help."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from linnaeus import load_model
from linnaeus.config import registry
from tests import fork_server

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text()
FILE = re.compile(r"`(mylab/[\w/.]+)`[^`:]*:\n\n```(?:python|yaml)\n(.*?)```", re.S)
SMALL = ["logger.report=false", "logger.console=plain", "data.validation_batch=16", "schedule.validate_partial_mask_meta=[]"]
SMALL += ["schedule.partial_combinations=[]"]
BIOTA = [*SMALL, "plugins=[mylab]", "data.train_samples=64", "data.validation_samples=16", "data.image_size=16", "trainer.length=2epochs"]
PARTS = {
    "optimizer": (["optimizer=signsgd"], "optimizer.momentum = 0.9"),
    "timm optimizer": (["optimizer=timm"], "optimizer.opt = lamb"),
    "loss": (["loss=focal"], "loss.gamma = 2.0"),
    "head": (["head=cosine"], "head.scale = 16.0"),
    "model": (["model=smallconv"], "model.channels = 32"),
    "augmentation": (["augment=inverted"], "augment.name = inverted"),
    "metric": (["schedule.best_monitor=val/top3"], ", top3 (max)"),
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder with the package of the page."""
    folder = tmp_path_factory.mktemp("elsewhere")
    write_package(folder)
    return folder


def write_package(folder: Path, file: str = "", old: str = "", new: str = "") -> None:
    """Write the package of the page. In `file`, replace the text `old`."""
    for name, text in FILE.findall(PAGE):
        assert name != file or old in text, (file, old)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.replace(old, new) if name == file and old else text)


def forget_parts_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the parts that plugins register in this process disappear after the test."""
    monkeypatch.setattr(registry, "_parts", {group: dict(parts) for group, parts in registry._parts.items()})


def train(lab: Path, *words: str, run: Callable[..., subprocess.CompletedProcess] = fork_server.run) -> subprocess.CompletedProcess:
    """Run `python main.py`, forked from the server or in an interpreter of its own."""
    command = [sys.executable, str(ROOT / "main.py"), "--config-dir", "mylab/conf", *words]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = run(command, cwd=lab, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode in (0, 75), done.stderr[-3000:]
    return done


def summary(lab: Path, name: str) -> dict:
    (path,) = lab.glob(f"outputs/*/{name}/summary.json")
    return json.loads(path.read_text())


def test_each_example_is_short():
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert len(blocks) >= 10 and max(len(block.splitlines()) for block in blocks) <= 40


# registered and resumed as the other parts are; their files: test_every_part_is_in_help
ALIKE = {"optimizer", "timm optimizer", "loss", "augmentation", "metric"}


@pytest.mark.parametrize("part", [pytest.param(part, marks=pytest.mark.slow if part in ALIKE else ()) for part in PARTS])
def test_a_part_trains_and_resumes(lab: Path, part: str):
    words, _ = PARTS[part]
    name = part.replace(" ", "-")
    cut = ["schedule.early_stop.max_steps=2", "run.allow=[schedule.early_stop]"]  # stops at step 2; then the same run goes on to its end
    train(lab, *BIOTA, *words, f"run.name={name}", *cut)
    assert summary(lab, name)["global_step"] == 2
    done = train(lab, *BIOTA, *words, f"run.name={name}", "run.allow=[schedule.early_stop]")
    assert "continuing at step 2 of 4" in done.stdout and summary(lab, name)["global_step"] == 4


def test_every_part_is_in_help(lab: Path):
    others = [word for part, (words, _) in PARTS.items() for word in words if part != "timm optimizer"]
    page, of_timm = (train(lab, *BIOTA, *words, "--help").stdout for words in (others, PARTS["timm optimizer"][0]))
    for part, (_, key) in PARTS.items():
        assert key in (of_timm if part == "timm optimizer" else page)
    assert ", cross_entropy, focal, " in page and ", cross_entropy, focal, " in of_timm


def test_a_data_source(lab: Path):
    train(lab, *SMALL, "plugins=[mylab]", "data=tiles", "trainer.length=1epochs", "run.name=tiles")
    assert summary(lab, "tiles")["status"] == "finished"


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_workload(lab: Path, real: bool):
    started = functools.partial(subprocess.run, capture_output=True, text=True, check=False)
    train(lab, "experiment=lines", "run.name=lines", "logger.report=true", run=started if real else fork_server.run)
    (page,) = lab.glob("outputs/*/lines/report.html")
    assert "The line is off by" in page.read_text()
    assert summary(lab, "lines")["best"]["val/line/mae"]["value"] > 0
    (path,) = lab.glob("outputs/*/lines/metrics.jsonl")
    (row, *_) = [row for row in map(json.loads, path.read_text().splitlines()) if "train/loss" in row]
    assert row["train/loss"] == pytest.approx((row["train/line/loss"] + row["train/parabola/loss"]) / 2)
    assert row["train/line/loss"] != row["train/parabola/loss"]


def test_the_trained_model_of_a_workload_is_loaded(lab: Path, monkeypatch: pytest.MonkeyPatch):
    train(lab, "experiment=lines", "run.name=used", "trainer.length=40steps", "optimizer.lr=0.03")
    (run,) = lab.glob("outputs/*/used")
    monkeypatch.syspath_prepend(lab)
    forget_parts_after(monkeypatch)
    try:
        answers = load_model(run)({"x": torch.tensor([-0.5, 0.5])})
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "mylab"]:
            del sys.modules[name]
    expected = torch.tensor([[-0.5, 0.25], [2.5, 0.25]])  # 3 x + 1 and x^2
    assert (answers - expected).abs().max() < 0.5
