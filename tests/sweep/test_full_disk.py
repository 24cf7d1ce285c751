"""A disk that refuses what the sweep writes ends no trial: it is said once, tried again, and at the end the results are still printed."""

from __future__ import annotations

import errno
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from linnaeus.config import compose
from linnaeus.config.command_line import parse_command_line
from linnaeus.errors import ConfigError
from linnaeus.rundir import finished_run
from linnaeus.sweep import driver as driver_module
from linnaeus.sweep import outcomes, study_record, whole
from linnaeus.sweep.driver import Driver
from linnaeus.sweep.outcomes import FAILED, INTERRUPTED, Metric, ended
from linnaeus.sweep.request import read_request
from linnaeus.sweep.study_record import SweepRecord

FULL = OSError(errno.ENOSPC, "No space left on device", "/somewhere")
METRIC = Metric("val/loss", "min", True)


@pytest.fixture
def said(monkeypatch):
    """What is logged, line by line."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda entry: lines.append(entry.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("linnaeus")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    monkeypatch.setattr(driver_module, "LOOK", 0.001)
    yield lines
    logger.removeHandler(handler)
    logger.setLevel(level)


class Trials:
    """A source and a launcher: each trial is looked at `looks` times until it has failed, which needs no files."""

    def __init__(self, directory: Path, total: int, looks: int = 3, on_record_first: bool = False) -> None:
        self.total, self.looks, self.on_record_first, self.directory = total, looks, on_record_first, directory
        self.given, self.started, self.stopped = 0, [], []
        self.config = compose(["sweep.parallel=2"])

    def next(self, outcomes: Any) -> Any:
        self.given += 1
        where = self.directory / str(self.given)
        return None if self.given > self.total else trial(self.given, where, self.config)

    def kept(self, trial: Any) -> None:
        return None

    def start(self, job: Any) -> Any:
        number, left = int(job.overrides[0]), [self.looks]
        self.started.append(number)

        def poll() -> int | None:
            left[0] -= 1
            return None if left[0] else 1

        return SimpleNamespace(poll=poll, describe=lambda: "", stop=lambda: self.stopped.append(number))

    def driver(self) -> Driver:
        return Driver(self, self, self.config.sweep, METRIC, self.directory)  # type: ignore[arg-type]


def trial(number: int, where: Path, config: Any = None) -> Any:
    return SimpleNamespace(
        number=number, overrides=[str(number)], config=config, config_dir=None, directory=where, is_finished=lambda: False, describe=str
    )


class Disk:
    """Full from the `first` write on to before the `last`."""

    def __init__(self, first: int, last: float) -> None:
        self.first, self.last, self.asked = first, last, 0

    def write(self) -> None:
        self.asked += 1
        if self.first <= self.asked < self.last:
            raise FULL


def told(said: list[str]) -> list[str]:
    return [line for line in said if "No space left on device" in line]


def test_a_disk_that_is_full_for_a_while_stops_no_trial_and_is_told_of_once(tmp_path, said):
    trials, disk = Trials(tmp_path, 4), Disk(2, 7)
    found = trials.driver()
    found.run(disk.write)
    assert trials.started == [1, 2, 3, 4] and not trials.stopped and found.is_recorded
    (line,) = told(said)
    assert f"{tmp_path} could not be written" in line and "\n" not in line


def test_it_is_tried_again_at_each_look(tmp_path, said):
    trials, disk = Trials(tmp_path, 1, looks=50), Disk(2, 20)
    trials.driver().run(disk.write)
    assert 20 < disk.asked < 30, "and no more once it is on the disk"


def test_a_disk_that_stays_full_ends_nothing_either(tmp_path, said):
    trials = Trials(tmp_path, 3)
    found = trials.driver()
    found.run(Disk(1, float("inf")).write)
    assert trials.started == [1, 2, 3] and not found.is_recorded and len(told(said)) == 1
    assert [outcome.status for outcome in found.outcomes.values()] == [FAILED] * 3


def test_what_optuna_proposed_waits_until_it_is_known(tmp_path, said):
    trials, disk = Trials(tmp_path, 3, on_record_first=True), Disk(3, 30)
    started_after: dict[int, int] = {}
    start = trials.start

    def starting(job: Any) -> Any:
        started_after[int(job.overrides[0])] = disk.asked
        return start(job)

    trials.start = starting  # type: ignore[method-assign]
    trials.driver().run(disk.write)
    assert trials.started == [1, 2, 3] and len(told(said)) == 1
    assert started_after[1] == 1 and started_after[2] >= 30, "not before it was on the disk"


def test_a_trial_that_is_held_back_does_not_outlast_a_request_to_stop(tmp_path, said):
    trials = Trials(tmp_path, 3, on_record_first=True)
    found = trials.driver()
    asked = []

    def write() -> None:
        asked.append(1)
        found._requests.count = int(len(asked) > 10)
        raise FULL

    found.run(write)
    assert found.interrupted and trials.started == []


def test_a_trial_whose_log_cannot_be_made_fails_alone(tmp_path, said):
    trials = Trials(tmp_path, 3)
    (tmp_path / "trial-02.log").symlink_to(tmp_path / "none" / "x")
    found = trials.driver()
    found.run(Disk(1, float("inf")).write)
    assert trials.started == [1, 3] and not trials.stopped
    assert found.outcomes[2].status == FAILED and "could not be started" in str(found.outcomes[2].error)


def test_a_summary_that_cannot_be_read_ends_one_trial(tmp_path, said, monkeypatch):
    def unreadable(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path / finished_run.SUMMARY))

    monkeypatch.setattr(outcomes, "read_summary", unreadable)
    trials = Trials(tmp_path, 2)
    one, start = trial(1, tmp_path, trials.config), trials.start
    assert ended(one, trials.config.sweep, 75, tmp_path / "log", 0, False).status == INTERRUPTED
    assert ended(one, trials.config.sweep, 1, tmp_path / "log", 0, False).error == "exit status 1"
    trials.start = lambda job: SimpleNamespace(poll=lambda: 0, describe=lambda: "") if job.overrides == ["1"] else start(job)  # type: ignore
    found = trials.driver()
    found.run(lambda: None)
    assert trials.started == [2] and "results cannot be read: Input/output error" in str(found.outcomes[1].error)


class Instant:
    """A launcher whose runs have ended well when they begin."""

    def start(self, job: Any) -> Any:
        job.directory.mkdir(parents=True)
        values = {"val/loss": {"value": 0.5, "global_step": 8}}
        (job.directory / "summary.json").write_text(json.dumps({"status": "finished", "global_step": 8, "best": values}))
        return SimpleNamespace(poll=lambda: 0, describe=lambda: "", stop=lambda: None)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("full", [("sweep.json", "sweep.svg"), ("sweep.svg",), ("table.txt",)])
def test_the_results_are_printed_all_the_same_and_the_status_says_what_is_missing(tmp_path, said, monkeypatch, full):
    original = study_record.write_atomic

    def write_atomic(path: Path, content: Any) -> None:
        if path.name in full:
            raise FULL
        original(path, content)

    monkeypatch.setattr(whole, "build_launcher", lambda *_: Instant())
    for module in (study_record, whole):
        monkeypatch.setattr(module, "write_atomic", write_atomic)
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    request = read_request(parse_command_line(["-m", f"run.root={tmp_path}", "optimizer.lr=1e-3,1e-2", "sweep.name=mine"]))
    assert whole.run_sweep(request) == 1
    text = "\n".join(said)
    assert "the best first:" in text and text.count("0.5") >= 2
    assert f"sweeps/{request.sweep.name}{'/sweep.svg' if full == ('sweep.svg',) else ''} could not be written" in text
    assert ("the same command writes them" in text) == (full != ("sweep.svg",))


def test_a_sweep_that_cannot_be_locked_is_refused_in_one_line(tmp_path, monkeypatch):
    def refuse(self: Any) -> None:
        raise FULL

    monkeypatch.setattr(study_record.SweepLock, "acquire", refuse)
    with pytest.raises(ConfigError, match=r"run\.root: .*lock cannot be written \(No space left on device\)"):
        SweepRecord(tmp_path / "s", tmp_path, METRIC, []).open()
