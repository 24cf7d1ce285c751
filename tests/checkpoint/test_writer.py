"""`CheckpointWriter`: the thread writes the values at the time of the call, and an error of the disk does not end the run."""

import errno
import functools
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from linnaeus.checkpoint import CheckpointWriter, auto_resume_helper, list_checkpoints, writer
from linnaeus.checkpoint.format import EMA, MODEL, STATE, TRAINING
from linnaeus.checkpoint.retention import rename_newer
from linnaeus.files import TEMPORARY
from linnaeus.reporting import RowWriter
from tests import fork_server
from tests.checkpoint.conftest import fail_for, payload
from tests.checkpoint.test_format import assert_same

Errors = Callable[[], list[str]]  # returns the error messages since its last call


@pytest.fixture
def errors(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Errors:
    """Return a function that returns the error messages since its last call."""
    monkeypatch.setattr(logging.getLogger("linnaeus"), "propagate", True)
    caplog.set_level(logging.INFO, "linnaeus")

    def since() -> list[str]:
        lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
        caplog.clear()
        return lines

    return since


@pytest.fixture
def saving(tmp_path: Path) -> Iterator[CheckpointWriter]:
    """Return a writer in `tmp_path/run/checkpoints` that has committed step 1."""
    (tmp_path / "run").mkdir()
    made = CheckpointWriter(tmp_path / "run" / "checkpoints", keep_last=1, keep_best=0)
    made.save(1, **payload(1))
    made.wait()
    yield made
    made.close()


def large(step: int) -> dict[str, Any]:
    """Return a payload of 4 MiB, too large for the small disk."""
    return payload(step) | {"model_state": {"w": torch.full((512, 1024), float(step))}, "training_state": {"m": torch.ones(512, 1024)}}


def check_saved(saving: CheckpointWriter, step: int) -> None:
    assert saving.failure is None and saving.committed == step
    point = auto_resume_helper(saving.directory)
    assert point.step == step and not point.skipped
    assert os.listdir(saving.directory) == [f"step-{step:08d}"]


# -- in the background ---------------------------------------------------------------------------------------------------------


def test_the_values_at_the_time_of_the_call_are_written(saving: CheckpointWriter) -> None:
    """The tensors change before the thread starts to write."""
    go, live = threading.Event(), payload(2)
    saving.save(2, **live, before_write=lambda: go.wait(30) or pytest.fail("timeout"))
    assert saving.committed == 1 and saving.failure is None
    for tensor in (*live["model_state"].values(), *live["ema_state"].values(), *live["training_state"]["accumulators"]):
        tensor.zero_()
    live["training_state"]["optimizer"][0]["exp_avg"].zero_()
    live["training_state"]["optimizer"][0]["step"] = -1
    live["state"]["nested"]["list"].append("later")
    go.set()
    saving.wait()
    check_saved(saving, 2)
    loaded = auto_resume_helper(saving.directory).checkpoint
    for part, value in payload(2).items():
        assert_same(value, getattr(loaded, part))


def test_before_write_is_called_first_and_in_the_thread(saving: CheckpointWriter) -> None:
    seen: list[Any] = []
    saving.save(2, **payload(2), before_write=lambda: seen.append((threading.current_thread(), os.listdir(saving.directory))))
    saving.wait()
    [(thread, names)] = seen
    assert thread is not threading.main_thread() and names == ["step-00000001"]


def test_a_save_waits_for_the_previous_one(saving: CheckpointWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, most, real = 0, 0, writer.save_checkpoint

    def watched(*args: Any, **kwargs: Any) -> Path:
        nonlocal inside, most
        inside, most = inside + 1, max(most, inside + 1)
        try:
            return real(*args, **kwargs)
        finally:
            inside -= 1

    monkeypatch.setattr(writer, "save_checkpoint", watched)
    for step in range(2, 8):
        saving.save(step, **payload(step))
    saving.wait()
    assert most == 1
    check_saved(saving, 7)


@pytest.mark.parametrize(
    "run",
    [fork_server.run, pytest.param(functools.partial(subprocess.run, capture_output=True, text=True), marks=pytest.mark.slow)],
    ids=["forked", "started"],
)
def test_a_process_that_ends_with_an_exception_finishes_the_save(tmp_path: Path, run: Any) -> None:
    script = (
        "from pathlib import Path; from linnaeus.checkpoint import CheckpointWriter; from tests.checkpoint.test_writer import large\n"
        f"CheckpointWriter(Path({str(tmp_path)!r}), 1, 0).save(3, **large(3), before_write=lambda: __import__('time').sleep(0.3))\n"
        "raise KeyError('the run went wrong')\n"
    )
    done = run([sys.executable, "-c", script], cwd=Path(__file__).parents[2])
    assert done.returncode == 1 and "the run went wrong" in done.stderr
    assert auto_resume_helper(tmp_path).step == 3


# -- errors of the program -----------------------------------------------------------------------------------------------------


def test_a_value_that_is_not_plain_is_refused_at_the_call(saving: CheckpointWriter) -> None:
    with pytest.raises(TypeError, match="training_state"):
        saving.save(2, **(payload(2) | {"training_state": {"a": {1, 2}}}))
    saving.wait()
    check_saved(saving, 1)


@pytest.mark.parametrize("by", ["wait", "save", "close"])
def test_an_exception_in_the_thread_is_raised_once(saving: CheckpointWriter, by: str, errors: Errors) -> None:
    saving.save(2, **payload(2), before_write=lambda: {}["bug"])  # type: ignore[func-returns-value]
    with pytest.raises(KeyError, match="bug"):
        saving.save(3, **payload(3)) if by == "save" else getattr(saving, by)()
    assert errors() == []
    saving.save(4, **payload(4))
    saving.wait()
    check_saved(saving, 4)


# -- errors of the disk --------------------------------------------------------------------------------------------------------


def check_refused(saving: CheckpointWriter, lines: list[str], *words: str, newest: int | None = 1) -> None:
    """Check that step 2 failed with one error message and left no files."""
    assert len(lines) == 1, lines
    intact = "There is NO checkpoint" if newest is None else f"The newest intact checkpoint is that of step {newest}"
    for word in ("checkpoint of step 2 could NOT be written", intact, "the next save tries again", *words):
        assert word in lines[0]
    assert saving.failure is not None and saving.failure.startswith("step 2: ") and "\n" not in saving.failure
    assert saving.committed == 1
    if newest is not None:
        assert os.listdir(saving.directory) == [f"step-{newest:08d}"]
        assert auto_resume_helper(saving.directory).step == newest


def try_again(saving: CheckpointWriter, errors: Errors) -> None:
    """Save step 3 and check that it is committed without an error."""
    saving.save(3, **large(3))
    saving.wait()
    check_saved(saving, 3)
    assert errors() == []


REFUSED_CALLS = [("mkdir", 0), ("open", 0), ("write", 0), ("write", 2), ("fsync", 0), ("fsync", 3), ("rename", 0), ("close", 1)]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.EIO, errno.EFBIG], ids=errno.errorcode.get)
@pytest.mark.parametrize(("name", "after"), REFUSED_CALLS)
def test_any_call_that_fails(
    saving: CheckpointWriter, errors: Errors, name: str, after: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls of `os` in the writer's thread fail after some that succeed. `close` closes the file before it fails."""
    calls, real = 0, getattr(os, name)

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        if threading.current_thread() is threading.main_thread():
            return real(*args, **kwargs)
        calls += 1
        if name == "close":
            real(*args, **kwargs)
        if calls > after and (name != "close" or calls == after + 1):  # the deletion of temporary files also calls `close`
            raise OSError(code, os.strerror(code))
        return None if name == "close" else real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, name, failing)
        saving.save(2, **large(2))
        saving.wait()
    assert calls > after, "the failure was not reached"
    if name == "open":  # the deletion also calls `open`: the temporary files are deleted by the next save
        [left] = saving.directory.glob(f"{TEMPORARY}*")
        shutil.rmtree(left)
    check_refused(saving, errors(), os.strerror(code), writer.REMEDIES.get(code, "check the disk"))
    try_again(saving, errors)


def test_short_writes_are_completed(saving: CheckpointWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, memoryview(data)[:70_001]))
    saving.save(2, **large(2))
    saving.wait()
    check_saved(saving, 2)
    assert_same(auto_resume_helper(saving.directory).checkpoint.model_state, large(2)["model_state"])  # type: ignore[union-attr]


def test_a_deleted_run_directory_is_not_created_again(saving: CheckpointWriter, errors: Errors) -> None:
    run = saving.directory.parent
    shutil.rmtree(run)
    saving.save(2, **payload(2))
    saving.wait()
    check_refused(saving, errors(), "No such file or directory", "restore the run directory", newest=None)
    assert not run.exists()
    run.mkdir()
    try_again(saving, errors)


def test_a_checkpoint_is_not_written_before_its_rows(saving: CheckpointWriter, errors: Errors) -> None:
    rows = RowWriter(saving.directory.parent / "metrics.jsonl")
    rows.log(1, {"x": 1})
    rows.path.unlink()
    saving.save(2, **payload(2), before_write=rows.sync)
    saving.wait()
    check_refused(saving, errors(), "metrics.jsonl")
    rows.close()


def test_the_checkpoint_named_in_the_error_must_be_intact(saving: CheckpointWriter, errors: Errors) -> None:
    (saving.directory / "step-00000001" / MODEL).unlink()
    saving.save(2, **payload(2), before_write=lambda: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error")))
    saving.wait()
    assert "There is NO checkpoint" in errors()[0]


def test_a_failed_save_of_the_same_step_keeps_the_first_one(
    saving: CheckpointWriter, errors: Errors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replacement needs two renames; the second one fails."""
    calls, real = 0, os.rename

    def failing(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(errno.EIO, "Input/output error")
        real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", failing)
        saving.save(1, **payload(1, attempt=2))
        saving.wait()
    assert (
        len(lines := errors()) == 1
        and "written: Input/output error. An earlier save of this step is intact; training" in lines[0]
        and saving.failure
    )
    assert os.listdir(saving.directory) == ["step-00000001"]
    assert "attempt" not in auto_resume_helper(saving.directory).checkpoint.state  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["rename", "rmtree"])
def test_a_failed_deletion_does_not_undo_the_save(
    saving: CheckpointWriter, errors: Errors, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        fail_for(patch, os if name == "rename" else shutil, name, "step-00000001", errno.EACCES)
        saving.save(2, **payload(2))
        saving.wait()
    assert saving.failure is None and saving.committed == 2
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any("step-00000001" in line and "Permission denied" in line for line in warned) and errors() == []
    assert auto_resume_helper(saving.directory).step == 2
    try_again(saving, errors)


def test_leftovers_and_other_files_in_the_directory(saving: CheckpointWriter) -> None:
    """Temporary files of killed processes, partly deleted checkpoints, and files instead of directories."""
    half = saving.directory / f"{TEMPORARY}step-00000009-77-deleted"
    half.mkdir()
    (half / TRAINING).write_bytes(b"half")
    shutil.copytree(saving.directory / "step-00000001", saving.directory / f"{TEMPORARY}step-00000008-77")
    (saving.directory / "step-odd.aside").write_text("somebody's")
    (saving.directory / "step-00000007").mkdir()
    (saving.directory / "step-00000006").write_text("a file")
    (saving.directory / "step-00000005.replaced").write_text("a file")
    shutil.copytree(saving.directory / "step-00000001", saving.directory / "step-00000004")
    for name in (EMA, STATE):
        (saving.directory / "step-00000004" / name).unlink()
    again = CheckpointWriter(saving.directory, keep_last=1, keep_best=0)
    point = auto_resume_helper(saving.directory)
    assert point.step == 1 and [Path(path).name for path, _ in point.skipped] == ["step-00000007", "step-00000004"]
    rename_newer(saving.directory, point.step)
    for step in (5, 6, 8):
        again.save(step, **payload(step))
        again.wait()
        assert again.failure is None
    assert [step for step, _ in list_checkpoints(saving.directory)] == [8]
    assert [path.name for path in saving.directory.iterdir() if path.is_dir()] == ["step-00000008"]
    again.close()
