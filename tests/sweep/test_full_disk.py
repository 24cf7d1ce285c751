"""A disk that refuses the files of a sweep does not end a trial: one warning, further attempts, and the results are printed at the end."""

import errno
import json
import logging
import math
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
from linnaeus.sweep.trial_results import FAILED, INTERRUPTED, Metric
from linnaeus.sweep.trial_runner import TrialRunner
from linnaeus.sweep.trial_source import TrialSource

FULL = OSError(errno.ENOSPC, "No space left on device", "/somewhere")


@pytest.fixture
def warnings(monkeypatch, caplog):
    """Return a function that returns the warnings about the full disk."""
    monkeypatch.setattr(trial_runner, "POLL_SECONDS", 0.001)
    caplog.set_level(logging.INFO, "linnaeus")
    return lambda: [record.getMessage() for record in caplog.records if "No space left on device" in record.getMessage()]


class Trials(TrialSource):
    """A source, a launcher and a disk, which is full from write number `full[0]` until before write number `full[1]`.

    Each trial ends at its poll number `polls`, with its exit status in `statuses` or 1; that needs no files."""

    metric = Metric("val/loss", "min", True)

    def __init__(self, directory: Path, total: int, full: tuple[float, float] = (0, 0), polls: int = 3, config: Any = None) -> None:
        super().__init__()
        self.directory, self.total, self.full, self.polls = directory, total, full, polls
        self.config = config or compose(["sweep.parallel=2"])
        self.runner = TrialRunner(self, self, self.config.sweep, directory)  # type: ignore[arg-type]
        self.statuses: dict[int, int] = {}
        self.started: dict[int, int] = {}  # number -> writes before its start
        self.writes = self.running = self.most_at_once = 0

    def next(self) -> Any:
        number = len(self.trials) + 1
        if number > self.total:
            return None
        settings = dict(number=number, overrides=[str(number)], config=self.config, config_dir=None, directory=self.directory / str(number))
        self.trials.append(SimpleNamespace(**settings, is_finished=lambda: False, describe=str))  # type: ignore[arg-type]
        return self.trials[-1]

    def start(self, job: Any) -> Any:
        number, left = int(job.overrides[0]), [self.polls]
        self.started[number] = self.writes
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)

        def poll() -> int | None:
            left[0] -= 1
            self.running -= not left[0]
            return None if left[0] else self.statuses.get(number, 1)

        return SimpleNamespace(poll=poll, describe=lambda: "", stop=lambda: pytest.fail("a trial was stopped"))

    def write(self) -> None:
        self.writes += 1
        if self.full[0] <= self.writes < self.full[1]:
            raise FULL


@pytest.mark.parametrize("last", [7, math.inf])
def test_a_full_disk_stops_no_trial_and_gives_one_warning(tmp_path, warnings, last):
    trials = Trials(tmp_path, 4, full=(2, last))
    trials.runner.run(trials.write)
    assert list(trials.started) == [1, 2, 3, 4] and trials.runner.is_recorded == (last == 7)
    assert [result.status for result in trials.results.values()] == [FAILED] * 4
    (line,) = warnings()
    assert f"{tmp_path} cannot be written" in line and "\n" not in line


def test_a_failed_write_is_repeated_at_each_poll(tmp_path, warnings):
    trials = Trials(tmp_path, 1, full=(2, 20), polls=50)
    trials.runner.run(trials.write)
    assert 20 < trials.writes < 30, "and not after it has succeeded"


def test_a_proposal_of_optuna_starts_only_after_it_is_recorded(tmp_path, warnings):
    trials = Trials(tmp_path, 3, full=(3, 30))
    trials.record_before_start = True
    trials.runner.run(trials.write)
    assert list(trials.started) == [1, 2, 3] and len(warnings()) == 1
    assert trials.started[1] == 1 and trials.started[2] >= 30


def test_a_stop_request_ends_a_sweep_whose_next_trial_cannot_be_recorded(tmp_path, warnings):
    trials = Trials(tmp_path, 3, full=(1, math.inf))
    trials.record_before_start = True

    def write() -> None:
        trials.runner._requests.count = int(trials.writes > 10)
        trials.write()

    trials.runner.run(write)
    assert trials.runner.interrupted and not trials.started


def test_a_trial_whose_log_cannot_be_made_fails_alone(tmp_path, warnings):
    trials = Trials(tmp_path, 3, full=(1, math.inf))
    (tmp_path / "trial-02.log").symlink_to(tmp_path / "none" / "x")
    trials.runner.run(trials.write)
    assert list(trials.started) == [1, 3]
    assert trials.results[2].status == FAILED and "cannot start: " in str(trials.results[2].error)


def test_a_summary_that_cannot_be_read_fails_one_trial(tmp_path, warnings, monkeypatch):
    def unreadable(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path / finished_run.SUMMARY))

    monkeypatch.setattr(trial_results, "read_summary", unreadable)
    trials = Trials(tmp_path, 3)
    trials.statuses = {1: 0, 2: 75}
    trials.runner.run(trials.write)
    assert [trials.results[number].status for number in (1, 2, 3)] == [FAILED, INTERRUPTED, FAILED]
    assert "results cannot be read: Input/output error" in str(trials.results[1].error) and trials.results[3].error == "exit status 1"


class InstantLauncher:
    """A launcher whose runs are finished when they start."""

    def start(self, job: Any) -> Any:
        job.directory.mkdir(parents=True)
        values = {"val/loss": {"value": 0.5, "global_step": 8}}
        (job.directory / "summary.json").write_text(json.dumps({"status": "finished", "global_step": 8, "best": values}))
        return SimpleNamespace(poll=lambda: 0, describe=lambda: "")


@pytest.mark.parametrize("full", [("sweep.json", "sweep.svg"), ("table.txt",)])
def test_the_results_are_printed_and_the_status_is_1_if_a_file_is_missing(tmp_path, caplog, warnings, monkeypatch, full):
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
    assert "the best first:" in caplog.text and caplog.text.count("0.5") >= 2
    assert "sweeps/mine cannot be written: No space left on device" in warnings()[0]
    assert "the same command writes its files" in caplog.text


def test_a_sweep_that_cannot_be_locked_is_refused_in_one_line(tmp_path, monkeypatch):
    def refuse(self: Any) -> None:
        raise FULL

    monkeypatch.setattr(sweep_files.RunLock, "acquire", refuse)
    match = r"run\.root: .*/s cannot be written \(No space left on device\)"
    with pytest.raises(ConfigError, match=match), SweepFiles(tmp_path / "s", tmp_path, Trials(tmp_path, 1), []).opened():
        pass
