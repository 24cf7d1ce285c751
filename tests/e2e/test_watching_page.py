"""Run the commands of docs/watching.md, as they are printed, on tiny runs. Left out are those that need a server or an account.

They are composed and checked by tests/e2e/test_documents.py too."""

from __future__ import annotations

import importlib.util
import json
import shlex
import shutil
from pathlib import Path

import pytest

import linnaeus.__main__
import main
from tests import runs
from tests.e2e.test_documents import ROOT, lines_of
from tests.reporting.test_replay import in_csv, in_files, in_tensorboard, rounded

LINES = [line for line in lines_of(ROOT / "docs" / "watching.md") if not line.startswith("pip ")]
SERVER = ("--to mlflow",)  # with the address of a server
PACKAGES = {"--to trackio": "trackio", "--to wandb": "wandb", "--to tensorboard": "tensorboard"}
TRAINING = [line for line in LINES if line.startswith("python main.py ")]
OTHERS = [line for line in LINES if line.startswith("linnaeus ")]


def start(line: str, monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
    """Run a command in this process. It must end with status 0."""
    program, *words = shlex.split(line)
    if program == "linnaeus":
        assert linnaeus.__main__.main([*words, *more]) == 0
    else:
        assert words[0] == "main.py"
        monkeypatch.setattr("sys.argv", [*words, *more])
        assert main.main() == 0


def test_the_commands_are_those_of_the_page() -> None:
    assert len(TRAINING) == 5 and len(OTHERS) == 10 and len(TRAINING) + len(OTHERS) == len(LINES), LINES


@pytest.mark.slow
def test_runs_are_reported_evaluated_and_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs, one of them in another folder too, and a folder of a sweep."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name, rate in {"mine": 0.002, "other": 0.001, "third": 0.004}.items():
        settings = runs.overrides("biota", Path("outputs"), "trainer.length=2steps", f"optimizer.lr={rate}", "logger.report=true")
        monkeypatch.setattr("sys.argv", ["main.py", *[text for text in settings if text != "run.name=run"], f"run.name={name}"])
        assert main.main() == 0
    found = {name: Path("outputs/biota") / name for name in ("mine", "other", "third")}
    shutil.copytree(found["mine"], "outputs/photos/first")
    sweep = Path("outputs/sweeps/six")
    sweep.mkdir(parents=True)
    trials = [{"trial": i, "directory": f"biota/{name}"} for i, name in enumerate(found)]
    (sweep / "sweep.json").write_text(json.dumps({"trials": trials}))
    (found["mine"] / "report.html").unlink()
    for line in OTHERS:
        package = next((package for words, package in PACKAGES.items() if words in line), None)
        if any(words in line for words in SERVER) or (package is not None and importlib.util.find_spec(package) is None):
            continue
        start(line.replace(" RUN", " outputs/biota/mine"), monkeypatch)
    pages = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.html")}
    assert pages >= {
        "outputs/biota/mine/report.html",
        "outputs/biota/comparison.html",
        "comparison.html",
        "outputs/sweeps/six/comparison.html",
    }
    assert in_csv(found["mine"]) == in_files(found["mine"])
    if importlib.util.find_spec("tensorboard") is not None:
        assert in_tensorboard(found["mine"]) == rounded(in_files(found["mine"]))
    if importlib.util.find_spec("wandb") is not None:
        assert len(list((found["mine"] / "wandb").glob("offline-run-*"))) == 1
    assert list(found["mine"].glob("evaluations/*/metrics.json"))


@pytest.mark.slow
@pytest.mark.parametrize("line", TRAINING)
def test_a_run_is_trained_by_the_command(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """A package that is not installed, and a server that does not answer, are a line of the log."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRACKING", f"sqlite:///{tmp_path}/tracking.db")
    monkeypatch.setenv("NOTIFY", "json://127.0.0.1:1")
    given = {word.partition("=")[0] for word in shlex.split(line)}
    length = "trainer.length=62steps" if "profile" in given else "trainer.length=4steps"
    tiny = runs.overrides("vectors", Path("outputs"), length, "logger.console=plain")
    tiny = [text for text in tiny if text.partition("=")[0] not in given]
    start(line, monkeypatch, "--config-dir", str(runs.VECTORS), *tiny)
    run, text = Path("outputs/vectors/run"), capsys.readouterr().out
    if "plan" in given:
        assert "\npicture\n" in text and (run / "schedule.svg").exists() and not (run / "summary.json").exists()
        return
    assert runs.summary(run)["status"] == "finished"
    if "profile" in given:
        assert "updates (50 to 54), mean" in (run / "profile" / "summary.txt").read_text() and (run / "profile" / "trace.json").exists()
    if "logger.peak_tflops" in given:
        assert any("recent/mfu" in row for row in runs.rows(run / "timings.jsonl"))
