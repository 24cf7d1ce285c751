"""Signals, the time limit and unreadable data: all ranks save and stop at the same step, and no work is repeated."""

from __future__ import annotations

import errno
import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from linnaeus.checkpoint import save_checkpoint, writer
from linnaeus.distributed.signals import SAME_REQUEST, STOPPING, StoppedBeforeTraining, StopRequest
from linnaeus.errors import ConfigError
from linnaeus.train import loop, saving, step_end, validation
from tests import fork_server, runs, watching

VALIDATING = ["schedule.validate=[4steps]", "trainer.length=10steps", "schedule.validate_at_end=true"]
MASKED = ["schedule.validate_mask_meta=[4steps]", "schedule.validate_partial_mask_meta=[4steps]", "trainer.global_batch_size=16"]
MASKED += ["data.validation_batch=2"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the function that returns the run of a workload that was not stopped."""
    root = tmp_path_factory.mktemp("whole")
    return functools.cache(lambda name: runs.run(name, root / name, *VALIDATING, *(MASKED if name != "vectors" else [])))


ROUNDS = [*(("masked", round_) for round_ in (1, 4, 7, 9, 36, 37, 105)), pytest.param("biota", 40, marks=pytest.mark.slow)]


@pytest.mark.parametrize("workload, round_", ROUNDS)
def test_a_signal_in_any_round_of_any_pass_interrupts_it(whole, tmp_path, workload, round_):
    """13 samples in batches of 2 are 7 rounds per pass; five passes run at steps 4, 8 and 10. Passes with a result are not run again."""
    config = runs.configuration(workload, tmp_path, *VALIDATING, *MASKED)
    runs.interrupted(config, watching.signalled_in_validation(round_))
    step, done = [4, 8, 10][(round_ - 1) // 35], (round_ - 1) % 35 // 7
    run = runs.run_path(config)
    summary = runs.summary(run)
    assert (summary["status"], summary["global_step"], summary["interrupted_by"]) == ("interrupted", step, "SIGTERM")
    assert runs.newest(run).step == step and len(runs.newest(run).state["progress"]["pending_validations"]) == 5
    with watching.counted(validation, "_run_batches") as passes:
        assert runs.start(config) == 0
    assert len(passes) == 15 - (round_ - 1) // 35 * 5 - done
    assert runs.differences(whole(workload), run) == []


def test_a_checkpoint_between_two_passes_keeps_the_results_before_it(tmp_path, monkeypatch):
    """A failed save before the passes of step 4 is made again when the run stops in the second pass. The plateau needs the first pass."""
    plateau = ["lr_scheduler=plateau", "lr_scheduler.patience=0", "lr_scheduler.min_delta=9", *VALIDATING, *MASKED]
    unbroken = runs.run("masked", tmp_path / "unbroken", *plateau)
    config = runs.configuration("masked", tmp_path / "stopped", *plateau)
    saves = itertools.count()

    def save(*args, **more):
        if not next(saves):
            raise OSError(errno.ENOSPC, "No space left on device")
        return save_checkpoint(*args, **more)

    monkeypatch.setattr(writer, "save_checkpoint", save)
    runs.interrupted(config, watching.signalled_in_validation(9))
    assert json.loads((runs.newest(runs.run_path(config)).path / "state.json").read_text())["progress"]["completed_validations"]
    assert runs.start(config) == 0
    assert runs.differences(unbroken, runs.run_path(config)) == []


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_that_stopped_early_and_is_interrupted_in_its_validation_trains_no_further(tmp_path, fails):
    """The limit is reached at step 5. The checkpoint before the last validation fails, or not; it is made again after the signal."""
    settings = [*VALIDATING, "trainer.length=9steps", "schedule.early_stop.min_lr=0.0075", "schedule.checkpoint=[1steps]"]
    whole = runs.run("vectors", tmp_path / "whole", *settings)
    assert (runs.summary(whole)["status"], runs.summary(whole)["global_step"]) == ("stopped_early", 5)
    failures = [OSError(errno.ENOSPC, "No space left on device")] if fails else []

    def save(directory, step, **more):
        if step == 5 and more["state"]["progress"]["pending_validations"] and failures:
            raise failures.pop()
        return save_checkpoint(directory, step, **more)

    config = runs.configuration("vectors", tmp_path / "stopped", *settings)
    with watching.mock.patch.object(writer, "save_checkpoint", save):
        runs.interrupted(config, watching.signalled_in_validation(8))
    stopped = runs.run_path(config)
    assert not failures and runs.summary(stopped)["stop_reason"] == "interrupted"
    assert runs.newest(stopped).state["stop_reason"] == runs.summary(whole)["stop_reason"]
    with watching.counted(loop, "train_one_step") as updates:
        assert runs.differences(whole, runs.resumed(config)) == []
    assert updates == []


@pytest.mark.parametrize("recorded, steps", [("interrupted", 5), ("a limit", 0)])
def test_interrupted_in_a_checkpoint_of_an_earlier_version_is_not_a_reason_to_stop(tmp_path, recorded, steps):
    config = runs.configuration("vectors", tmp_path, "trainer.length=10steps")
    readable = saving.readable_state
    with watching.mock.patch.object(saving, "readable_state", lambda t: readable(t) | {"stop_reason": recorded}):
        runs.interrupted(config, watching.stopped_at(5))
    with watching.counted(loop, "train_one_step") as updates:
        runs.resumed(config)
    assert len(updates) == steps


def test_two_processes_stop_in_a_pass_or_for_data_that_one_of_them_cannot_read(tmp_path):
    """In one group: after each way to stop, the same command ends with the results of the run that was not stopped."""
    ways = ["last_rank_signalled_in_validation", "unread_by_last_rank", "unread_in_validation_by_last_rank"]
    jobs = [runs.job("vectors", tmp_path / "whole", *VALIDATING)]
    for way in ways:
        jobs.append(runs.job("vectors", tmp_path / way, *VALIDATING, watch=[way], status=75))
        jobs.append(runs.job("vectors", tmp_path / way, "schedule.checkpoint_at_end=true", *VALIDATING))
    runs.run_group(2, jobs, tmp_path)
    for way, step in zip(ways, (4, 5, 4)):
        run = tmp_path / way / "vectors" / "run"
        assert runs.differences(tmp_path / "whole" / "vectors" / "run", run) == []
        assert (run / "launches" / "2").is_dir()
        text = (run / "train.log").read_text()
        assert f"stopped at step {step} " in text and f"continuing at step {step} of 10" in text
        if way.startswith("unread"):
            assert "the data cannot be read by process rank 1: the file server is away" in text


@pytest.mark.parametrize("training, step", [(True, 0), (True, 5), (False, 4)])
def test_data_that_cannot_be_read(whole, tmp_path, training, step):
    """The run is saved and stopped. Started again it reads them."""
    config = runs.configuration("vectors", tmp_path, *VALIDATING)
    runs.interrupted(config, watching.unread_by_last_rank(tmp_path, training, step))
    assert runs.newest(runs.run_path(config)).step == step
    assert "file server is away" in runs.summary(runs.run_path(config))["interrupted_by"]
    assert runs.differences(whole("vectors"), runs.resumed(config)) == []


def test_an_interrupted_run_writes_its_report_and_logs_each_save_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    config = runs.configuration("vectors", tmp_path, *VALIDATING, "logger.report=true")
    runs.interrupted(config, watching.unread_by_last_rank(tmp_path, True, 5))
    path = runs.run_path(config)
    assert ">interrupted</span>" in (path / "report.html").read_text()
    lines = (path / "train.log").read_text().splitlines()
    assert [line.split(" ", 2)[2] for line in lines if line.endswith("5 is saved")] == ["step 5 is saved"]
    assert torchrun_error(tmp_path) == "stopped at step 5 (the data cannot be read: the file server is away); the same command continues"


def test_torchrun_gets_the_reason_of_a_failed_run(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    config = runs.configuration("vectors", tmp_path)
    with watching.mock.patch("linnaeus.train.train_one_epoch", side_effect=RuntimeError("two\nlines")), pytest.raises(RuntimeError):
        runs.start(config)
    assert torchrun_error(tmp_path) == "error: RuntimeError: two lines"


def torchrun_error(folder):
    """Return the line that torchrun prints at the end of its page."""
    return json.loads((folder / "error.json").read_text())["message"]["message"]


def test_the_time_limit_saves_and_stops_every_launch(whole, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("linnaeus.distributed.synchronisation.time.monotonic", lambda: now[0])
    original = step_end.schedule_due_validations

    def a_minute_later(t):  # every step takes a minute
        now[0] += 60
        original(t)

    monkeypatch.setattr("linnaeus.train.step_end.schedule_due_validations", a_minute_later)
    config = runs.configuration("vectors", tmp_path, *VALIDATING, "trainer.max_time=3min")
    steps = []
    while runs.start(config) == 75:
        steps.append(runs.summary(runs.run_path(config))["global_step"])
        assert runs.summary(runs.run_path(config))["interrupted_by"] == "trainer.max_time=3min is over"
    assert steps == [3, 6, 9]
    assert runs.differences(whole("vectors"), runs.run_path(config)) == []


def test_the_time_limit_is_a_wall_time():
    with pytest.raises(ConfigError, match=r"trainer\.max_time is 10%; it must be a wall time"):
        runs.configuration("vectors", Path("x"), "trainer.max_time=10%")


def test_before_training_a_signal_ends_the_process_at_once_and_later_at_a_step_end():
    stop = StopRequest()
    with pytest.raises(StoppedBeforeTraining), stop.listening():
        os.kill(os.getpid(), signal.SIGUSR1)
    assert stop.signal == "SIGUSR1"
    stop, shown = StopRequest(), list[str]()
    with stop.listening():
        stop.defer_to_step_end(shown.append, lambda: "")
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)  # the same request: a scheduler signals launcher and ranks
    assert stop.signal == "SIGTERM" and shown == [STOPPING], "each request is confirmed once"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_signal_before_training_gives_status_75_and_the_same_command_starts_the_run(whole, tmp_path):
    config = runs.configuration("vectors", tmp_path, *VALIDATING)
    with watching.mock.patch("linnaeus.train.restore", lambda t, weights: os.kill(os.getpid(), signal.SIGTERM)):
        assert runs.start(config) == 75
    assert (runs.summary(runs.run_path(config))["status"], runs.summary(runs.run_path(config))["global_step"]) == ("interrupted", 0)
    assert runs.differences(whole("vectors"), runs.resumed(config)) == []


HELD = """
import os, signal, sys, main
from tests import watching
def hold():
    os.write(1, b"held\\n")
    while True:
        signal.pause()
sys.argv = ["main.py", *sys.argv[1:]]
with watching.in_update(7, hold):
    sys.exit(main.main())
"""


def test_a_second_ctrl_c_leaves_at_once_and_prints_what_is_lost(whole, tmp_path):
    """A run that is held in its seventh update; its newest checkpoint is that of the validation at step 4."""
    settings = [*VALIDATING, "schedule.checkpoint=[]", "logger.console=auto"]
    words = ["--config-dir", str(runs.VECTORS), *runs.overrides("vectors", tmp_path, *settings)]
    command = [sys.executable, "-c", HELD, *words]
    process = fork_server.Popen(command, cwd=runs.ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert "held\n" in iter(process.stdout.readline, ""), "it has ended"
    run = tmp_path / "vectors" / "run"
    while not runs.list_checkpoints(run / "checkpoints"):  # it is written in the background
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == STOPPING + "\n"
    time.sleep(SAME_REQUEST + 0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=600) == 128 + signal.SIGINT
    assert process.stdout.read().strip() == "left at once; the newest checkpoint is step 4; lost: 2 updates"
    assert runs.resumed(runs.configuration("vectors", tmp_path, *settings)) == run
    assert runs.differences(whole("vectors"), run) == []
