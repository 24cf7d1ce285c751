"""Run the commands and the code of docs/dictionary.md, as they are printed, on tiny models and in few updates.

They are composed and checked by tests/e2e/test_documents.py too."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

import linnaeus
from tests import runs
from tests.e2e.test_documents import ROOT, lines_of
from tests.e2e.test_watching_page import start

PAGE = (ROOT / "docs" / "dictionary.md").read_text()
NAMES = ("linnaeus edit",)  # in sentences
NOT_RUN = {"SAELENS_PYTHON=PATH_OF_A_PYTHON pytest": "needs an interpreter with SAELens"}
LINES = [line.partition("  #")[0].strip() for line in lines_of(ROOT / "docs" / "dictionary.md") if line not in NAMES]
TRAINING = [line for line in LINES if line.startswith("python main.py ")]
EDITS = [line for line in LINES if line.startswith("linnaeus edit ")]
SMALL = [*runs.TINY, "model.features=72", "trainer.length=12steps", "schedule.validate=[100%]", "run.name=RUN"]
READING = ["data.samples=20", "data.source_batch=4", "data.window=32", "dictionary.report_samples=40", "logger.report=true"]
RUN = Path("outputs/activations/RUN")


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict]:
    """Return a function that runs a command of the page in an empty folder and returns summary.json."""
    monkeypatch.chdir(tmp_path)

    def command(line: str, *more: str) -> dict:
        block = [] if "model=topk" in line else ["model.block=4"]
        sizes = READING if "dictionary.run" in line else runs.SAMPLES
        words = [*SMALL, *sizes, *block, *more]
        own = [word for word in shlex.split(line)[2:] if word.partition("=")[0] not in {other.partition("=")[0] for other in words}]
        last = {word.partition("=")[0]: word for word in words}  # a setting that is given twice is refused
        start("python main.py", monkeypatch, *own, *last.values())
        name = last["run.name"].partition("=")[2]
        return runs.summary(RUN.with_name(name) if "dictionary.run" in line else Path("outputs/planted") / name)

    return command


def test_the_commands_are_those_of_the_page() -> None:
    others = [line for line in LINES if line not in TRAINING and line not in EDITS]
    assert len(TRAINING) == 5 and len(EDITS) == 4, LINES
    assert others == [f"linnaeus evaluate {RUN}", f"linnaeus export {RUN} sae"]
    assert all(name in PAGE for name in NOT_RUN)


@pytest.mark.slow
def test_planted_features_are_learned(train) -> None:
    assert list(train("python main.py workload=dictionary", "schedule.best_monitor=val/mcc")["best"]) == ["val/mcc"]


@pytest.mark.slow
def test_a_language_model_is_read_edited_and_exported(train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    Path("text.txt").write_text("To be, or not to be: that is the question.\n" * 10)
    shutil.move(runs.run("language", Path("first"), "data.path=text.txt", "trainer.length=1steps"), "outputs/text/mine")
    one, several = [line for line in TRAINING if "dictionary.run=outputs/text/mine" in line]
    assert train(one)["status"] == train(several, "run.name=several")["status"] == "finished"
    page = (RUN / "report.html").read_text()
    assert "Density and frontier" in page and '<article class="feature"' in page and not (RUN / "feature_taxa.csv").exists()
    for line in (f"linnaeus evaluate {RUN}", f"linnaeus export {RUN} sae", f"linnaeus export {RUN.with_name('several')} several"):
        start(line, monkeypatch)
    assert list(RUN.glob("evaluations/*/metrics.json"))
    for folder in ("sae", "several/k16", "several/k32", "several/k64"):
        assert {path.name for path in Path(folder).iterdir()} == {"cfg.json", "sae_weights.safetensors"}
    capsys.readouterr()
    (line,) = [line for line in EDITS if '"To be"' in line]
    start(line, monkeypatch)
    out = capsys.readouterr().out
    assert out.startswith("To be\n") and "  before:\n" in out and "  after:\n" in out
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    values = {"linnaeus": linnaeus, "activations": torch.randn(5, linnaeus.load_model(RUN).dictionary.width)}
    exec(code, values)
    assert values["activities"].shape == (5, 72) and values["edited"].shape == values["activations"].shape


@pytest.mark.slow
def test_a_classifier_is_read_and_edited(trained, train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    shutil.copytree(trained["biota"], "outputs/biota/mine")
    Image.new("RGB", (24, 20), (90, 120, 30)).save("photo.jpg")
    trunk, norm = [line for line in TRAINING if "dictionary.run=outputs/biota/mine" in line]
    assert train(norm, "model.features=256", "run.name=norm")["status"] == train(trunk)["status"] == "finished"
    with open(RUN.with_name("norm") / "feature_taxa.csv", newline="") as file:
        columns = next(csv.reader(file))
    assert all(f"`{column}`" in PAGE for column in columns)
    capsys.readouterr()
    shown, edited = [line for line in EDITS if "photo.jpg" in line]
    start(shown, monkeypatch)
    assert "  before\n" in capsys.readouterr().out
    start(edited, monkeypatch)
    assert re.search(r"^  before +after$", capsys.readouterr().out, re.M)


@pytest.mark.slow
def test_a_model_of_gear_is_edited(read_by, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    (line,) = [line for line in EDITS if "splattershot" in line]
    run = str(read_by("loadout"))
    capsys.readouterr()  # of its training
    start(line.replace(str(RUN), run), monkeypatch)
    assert {"before", "after"} <= json.loads(capsys.readouterr().out)["answer"].keys()
