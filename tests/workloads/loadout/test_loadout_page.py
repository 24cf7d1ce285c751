"""Run the commands and the code of docs/loadout.md, as they are printed, on few builds and in few updates.

They are composed and checked by tests/e2e/test_documents.py too."""

from __future__ import annotations

import json
import re
import shlex
import zipfile
from pathlib import Path

import pytest

import linnaeus
from linnaeus.workloads.loadout.game.gear import is_full
from tests import runs
from tests.e2e.test_documents import ROOT, lines_of
from tests.e2e.test_watching_page import start
from tests.workloads.loadout.test_build_sources import write_battles, write_slots, write_tokens

PAGE = (ROOT / "docs" / "loadout.md").read_text()
NAMES = ("linnaeus complete",)  # in sentences
NOT_RUN = {"python -m benchmarks.loadout": "trainings of minutes; tests/benchmarks/test_loadout_trials.py calls its functions"}
LINES = [line for line in lines_of(ROOT / "docs" / "loadout.md") if line not in NAMES and not line.startswith(tuple(NOT_RUN))]
TRAINING = [line for line in LINES if line.startswith("python main.py ")]
SMALL = [*runs.TINY, "trainer.length=4steps", "lr_scheduler.warmup=1steps", "model.width=16", "data.subsets=1"]
SMALL += ["run.experiment=loadouts", "run.name=RUN"]
RUN = Path("outputs/loadouts/RUN")


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that runs a command of the page and returns summary.json. The current folder has the tables of the page."""
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("battles.zip", "w") as archive:
        archive.write(write_battles(tmp_path / "day.csv"), "2024/day.csv")
    write_slots(tmp_path / "builds.csv")

    def command(line: str, *more: str) -> dict:
        words = [*shlex.split(line)[2:], *SMALL, *([] if "data.path" in line else ["data.builds=200"]), *more]
        last = {word.partition("=")[0]: word for word in words}  # a setting that is given twice is refused
        start("python main.py", monkeypatch, *last.values())
        return runs.summary(RUN.with_name(last["run.name"].partition("=")[2]))

    return command


def test_the_commands_are_those_of_the_page() -> None:
    others = [line for line in LINES if line not in TRAINING]
    assert len(TRAINING) == 4 and len([line for line in others if line.startswith("linnaeus complete ")]) == 3 and len(others) == 4, LINES
    assert all(name in PAGE for name in NOT_RUN)


@pytest.mark.slow
@pytest.mark.parametrize("line", [line for line in TRAINING if line != "python main.py workload=loadout"])
def test_a_run_is_trained_by_the_command(line: str, train) -> None:
    found = train(line)
    assert found["status"] == "finished" and found["global_step"] == 4 and 0 < found["final"]["val/loss"] < 1


@pytest.mark.slow
def test_a_run_is_trained_used_and_evaluated(train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    train("python main.py workload=loadout")
    requests = [{"weapon": "n_zap_85", "have": "comeback"}, {"weapon": "45", "points": {"swim_speed_up": 29}}]
    Path("requests.jsonl").write_text("".join(json.dumps(request) + "\n" for request in requests))
    capsys.readouterr()
    outputs = {}
    for line in (line for line in LINES if line not in TRAINING):
        start(line.replace(" RUN ", f" {RUN} "), monkeypatch)
        outputs[line] = capsys.readouterr().out
    text, points, file, evaluated = [outputs[line] for line in sorted(outputs, key=lambda line: ("evaluate" in line, LINES.index(line)))]
    assert len(re.findall(r"^[123]\.  ", text, re.M)) == 3 and text.count("swim_speed_up *") == 3 * 3 and text.count("%") == 3 * 9
    assert json.loads(points)["have"] == "special_saver: sub sub, swim_speed_up: main main main"
    assert [json.loads(line)["weapon"] for line in file.splitlines()] == ["nzap85", "sshooter"]
    assert evaluated and list(RUN.glob("evaluations/test-*/metrics.json"))
    (code,) = re.findall(r"^In Python: `(.*)`", PAGE, re.M)
    answers = eval(code, {"linnaeus": linnaeus})
    assert len(answers) == 3 and all(is_full(answer.build) for answer in answers)


@pytest.mark.slow
def test_the_settings_for_those_who_come_from_splatnlp_are_trained_together(train, tmp_path: Path) -> None:
    table = PAGE[PAGE.index("## For those who come from SplatNLP") :]
    settings = [word for cell in re.findall(r"`([^`]*=[^`]*)`", table) for word in cell.split()]
    assert "data.removal=tokens" in settings and "schedule.best_monitor=val/f1" in settings and len(settings) > 10
    others = [word for word in settings if word not in ("data=builds", "data.path=TSV", "data=battles")]
    small = ["model.layers=1", "model.heads=2", "model.width=16", "schedule.early_stop.patience=9"]
    found = train("python main.py workload=loadout data=battles data.path=battles.zip", *others, *small)
    assert found["status"] == "finished" and list(found["best"]) == ["val/f1"], found
    train(f"python main.py workload=loadout data=builds data.path={write_tokens(tmp_path)}", "run.name=tokens")
