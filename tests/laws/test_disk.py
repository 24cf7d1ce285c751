"""A disk that is full, or a run directory that has vanished: training goes on, the last good checkpoint stands, and a run whose end
cannot be saved fails clearly; once there is room again, it ends as if nothing had happened."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from linnaeus.errors import RunFailed
from linnaeus.train import step_end
from tests import runs

SETTINGS = ["trainer.length=12steps", "schedule.checkpoint=[1steps]", "schedule.validate=[4steps]", "schedule.validate_at_end=true"]
SETTINGS += ["logger.report=false", "logger.console=auto"]


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 4 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting takes root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), open(disk / "filling", "wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 4096)


@contextlib.contextmanager
def at_steps(actions: dict[int, Callable[[], None]]) -> Iterator[None]:
    """Each action before what is due at its step, with nothing being written."""
    original = step_end.schedule_due_validations

    def acting(t) -> None:
        action = actions.get(t.progress.global_step)
        if action is not None:
            t.output.writer.wait()
            action()
        original(t)

    with mock.patch.object(step_end, "schedule_due_validations", acting):
        yield


def test_a_disk_that_is_full_for_a_while_is_made_up_for(whole, small_disk, capsys):
    config = runs.configuration("vectors", small_disk, *SETTINGS)
    with at_steps({3: lambda: fill(small_disk), 10: lambda: (small_disk / "filling").unlink()}):
        assert runs.start(config) == 0
    run = runs.run_path(config)
    assert runs.differences(whole, run) == []
    told = capsys.readouterr().out
    assert "the checkpoint of step 5 could NOT be written: No space left on device" in told and "The newest intact checkpoint is" in told
    assert "val.json could not be written" in told and (run / "validation/step-00000004/val.json").exists()


def test_a_run_whose_end_cannot_be_saved_fails_and_the_same_command_continues_once_there_is_room(whole, small_disk):
    config = runs.configuration("vectors", small_disk, *SETTINGS)
    with at_steps({6: lambda: fill(small_disk)}), pytest.raises(RunFailed, match=r"step 12 could not be saved .*No space left") as caught:
        runs.start(config)
    run = runs.run_path(config)
    assert str(caught.value).endswith(f"; the same command continues from step {runs.newest(run).step}")
    assert 5 <= runs.newest(run).step <= 6
    (small_disk / "filling").unlink()
    assert runs.start(config) == 0
    assert runs.differences(whole, run) == []
    assert runs.summary(run)["status"] == "finished"


def test_a_run_directory_that_vanishes_and_returns(whole, tmp_path, capsys):
    config = runs.configuration("vectors", tmp_path / "runs", *SETTINGS)
    run, away = runs.run_path(config), tmp_path / "away"
    with at_steps({3: lambda: run.rename(away), 10: lambda: away.rename(run)}):
        assert runs.start(config) == 0
    assert "could NOT be written" in capsys.readouterr().out
    assert runs.differences(whole, run) == []


def test_a_run_directory_that_is_deleted_is_not_made_anew_in_secret(tmp_path):
    config = runs.configuration("vectors", tmp_path, *SETTINGS)
    with (
        at_steps({6: lambda: shutil.rmtree(runs.run_path(config))}),
        pytest.raises(RunFailed, match="step 12 could not be saved") as caught,
    ):
        runs.start(config)
    assert str(caught.value).endswith("; the same command starts from the beginning, since there is no checkpoint")
    assert not runs.run_path(config).exists()
