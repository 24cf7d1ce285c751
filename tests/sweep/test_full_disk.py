"""A disk that refuses the files of a sweep does not end a trial: one warning, further attempts, and the results are printed at the end."""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from linnaeus.config import compose
from linnaeus.config.command_line import parse_command_line
from linnaeus.errors import ConfigError
from linnaeus.rundir import finished_run
from linnaeus.sweep import run_sweep, sweep_files, trial_results, trial_runner
from linnaeus.sweep.request import read_request
from linnaeus.sweep.sweep_files import SweepFiles
from linnaeus.sweep.trial_results import FAILED, INTERRUPTED, Metric, result_of_job
from linnaeus.sweep.trial_runner import TrialRunner
from linnaeus.sweep.trial_source import TrialSource

FULL = OSError(errno.ENOSPC, "No space left on device", "/somewhere")


@pytest.fixture
def lines(monkeypatch, caplog):
    """Return a function that returns the lines of the log."""
    caplog.set_level(logging.INFO, "linnaeus")
    monkeypatch.setattr(trial_runner, "POLL_SECONDS", 0.001)
    return lambda: [record.getMessage() for record in caplog.records]


class Trials(TrialSource):
    """A source and a launcher: each trial fails at the poll number `polls`, which needs no files."""

    metric = Metric("val/loss", "min", True)

    def __init__(self, directory: Path, total: int, polls: int = 3, record_before_start: bool = False, config: Any = None) -> None:
        super().__init__()
        self.total, self.polls, self.record_before_start, self.directory = total, polls, record_before_start, directory
        self.started, self.stopped, self.running, self.most_at_once = [], [], 0, 0
        self.config = config or compose(["sweep.parallel=2"])

    def next(self) -> Any:
        number = len(self.trials) + 1
        if number > self.total:
            return None
        self.trials.append(trial(number, self.directory / str(number), self.config))
        return self.trials[-1]

    def start(self, job: Any) -> Any:
        number, left = int(job.overrides[0]), [self.polls]
        self.started.append(number)
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)

        def poll() -> int | None:
            left[0] -= 1
            self.running -= not left[0]
            return None if left[0] else 1

        return SimpleNamespace(poll=poll, describe=lambda: "", stop=lambda: self.stopped.append(number))

    def runner(self) -> TrialRunner:
        return TrialRunner(self, self, self.config.sweep, self.directory)  # type: ignore[arg-type]


def trial(number: int, directory: Path, config: Any = None) -> Any:
    settings = dict(number=number, overrides=[str(number)], config=config, config_dir=None, directory=directory, values={})
    return SimpleNamespace(**settings, is_finished=lambda: False, describe=str)


class Disk:
    """A disk that is full from write number `first` until before write number `last`."""

    def __init__(self, first: int, last: float = float("inf")) -> None:
        self.first, self.last, self.writes = first, last, 0

    def write(self) -> None:
        self.writes += 1
        if self.first <= self.writes < self.last:
            raise FULL


def warnings(lines: Callable[[], list[str]]) -> list[str]:
    return [line for line in lines() if "No space left on device" in line]


@pytest.mark.parametrize("last", [7, float("inf")])
def test_a_full_disk_stops_no_trial_and_gives_one_warning(tmp_path, lines, last):
    trials = Trials(tmp_path, 4)
    runner = trials.runner()
    runner.run(Disk(2, last).write)
    assert trials.started == [1, 2, 3, 4] and not trials.stopped and runner.is_recorded == (last == 7)
    assert [result.status for result in trials.results.values()] == [FAILED] * 4
    (line,) = warnings(lines)
    assert f"{tmp_path} cannot be written" in line and "\n" not in line


def test_a_failed_write_is_repeated_at_each_poll(tmp_path, lines):
    trials, disk = Trials(tmp_path, 1, polls=50), Disk(2, 20)
    trials.runner().run(disk.write)
    assert 20 < disk.writes < 30, "and not after it has succeeded"


def test_a_proposal_of_optuna_starts_only_after_it_is_recorded(tmp_path, lines):
    trials, disk = Trials(tmp_path, 3, record_before_start=True), Disk(3, 30)
    writes_before: dict[int, int] = {}
    start = trials.start

    def starting(job: Any) -> Any:
        writes_before[int(job.overrides[0])] = disk.writes
        return start(job)

    trials.start = starting  # type: ignore[method-assign]
    trials.runner().run(disk.write)
    assert trials.started == [1, 2, 3] and len(warnings(lines)) == 1
    assert writes_before[1] == 1 and writes_before[2] >= 30


def test_a_stop_request_ends_a_sweep_whose_next_trial_cannot_be_recorded(tmp_path, lines):
    trials = Trials(tmp_path, 3, record_before_start=True)
    runner = trials.runner()
    writes = []

    def write() -> None:
        writes.append(1)
        runner._requests.count = int(len(writes) > 10)
        raise FULL

    runner.run(write)
    assert runner.interrupted and trials.started == []


def test_a_trial_whose_log_cannot_be_made_fails_alone(tmp_path, lines):
    trials = Trials(tmp_path, 3)
    (tmp_path / "trial-02.log").symlink_to(tmp_path / "none" / "x")
    runner = trials.runner()
    runner.run(Disk(1).write)
    assert trials.started == [1, 3] and not trials.stopped
    assert trials.results[2].status == FAILED and "cannot start: " in str(trials.results[2].error)


def test_a_summary_that_cannot_be_read_fails_one_trial(tmp_path, lines, monkeypatch):
    def unreadable(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path / finished_run.SUMMARY))

    monkeypatch.setattr(trial_results, "read_summary", unreadable)
    trials = Trials(tmp_path, 2)
    one, start = trial(1, tmp_path, trials.config), trials.start
    assert result_of_job(one, trials.config.sweep, 75, tmp_path / "log", 0, False).status == INTERRUPTED
    assert result_of_job(one, trials.config.sweep, 1, tmp_path / "log", 0, False).error == "exit status 1"
    trials.start = lambda job: SimpleNamespace(poll=lambda: 0, describe=lambda: "") if job.overrides == ["1"] else start(job)  # type: ignore
    runner = trials.runner()
    runner.run(lambda: None)
    assert trials.started == [2] and "results cannot be read: Input/output error" in str(trials.results[1].error)


class InstantLauncher:
    """A launcher whose runs are finished when they start."""

    def start(self, job: Any) -> Any:
        job.directory.mkdir(parents=True)
        values = {"val/loss": {"value": 0.5, "global_step": 8}}
        (job.directory / "summary.json").write_text(json.dumps({"status": "finished", "global_step": 8, "best": values}))
        return SimpleNamespace(poll=lambda: 0, describe=lambda: "", stop=lambda: None)


@pytest.mark.parametrize("full", [("sweep.json", "sweep.svg"), ("table.txt",)])
def test_the_results_are_printed_and_the_status_is_1_if_a_file_is_missing(tmp_path, lines, monkeypatch, full):
    original = sweep_files.write_atomic

    def write_atomic(path: Path, content: Any) -> None:
        if path.name in full:
            raise FULL
        original(path, content)

    monkeypatch.setattr(run_sweep, "build_launcher", lambda *_: InstantLauncher())
    monkeypatch.setattr(sweep_files, "write_atomic", write_atomic)
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    request = read_request(parse_command_line(["-m", f"run.root={tmp_path}", "optimizer.lr=1e-3,1e-2", "sweep.name=mine"]))
    assert run_sweep.run_sweep(request) == 1
    text = "\n".join(lines())
    assert "the best first:" in text and text.count("0.5") >= 2
    assert "sweeps/mine cannot be written: No space left on device" in text
    assert "the same command writes its files" in text


def test_a_sweep_that_cannot_be_locked_is_refused_in_one_line(tmp_path, monkeypatch):
    def refuse(self: Any) -> None:
        raise FULL

    monkeypatch.setattr(sweep_files.RunLock, "acquire", refuse)
    match = r"run\.root: .*/s cannot be written \(No space left on device\)"
    with pytest.raises(ConfigError, match=match), SweepFiles(tmp_path / "s", tmp_path, Trials(tmp_path, 1), []).opened():
        pass
