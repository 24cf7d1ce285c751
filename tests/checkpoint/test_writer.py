"""Saving in the background: what a thread writes is what was there when `save` was called, and a disk that refuses ends nothing."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
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
from linnaeus.checkpoint.format import EMA, MODEL, STATE, TRAINING, read_manifest
from linnaeus.files import TEMPORARY, file_digest
from linnaeus.reporting import RowWriter
from tests.checkpoint.conftest import payload
from tests.checkpoint.test_format import assert_same


@pytest.fixture
def errors(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The lines said as errors since the last call."""
    monkeypatch.setattr(logging.getLogger("linnaeus"), "propagate", True)
    caplog.set_level(logging.INFO, "linnaeus")

    def since() -> list[str]:
        lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
        caplog.clear()
        return lines

    return since


@pytest.fixture
def saving(tmp_path: Path) -> Iterator[CheckpointWriter]:
    """A writer in `tmp_path/run/checkpoints` that has committed step 1."""
    (tmp_path / "run").mkdir()
    made = CheckpointWriter(tmp_path / "run" / "checkpoints", keep_last=1, keep_best=0)
    made.save(1, **payload(1))
    made.wait()
    yield made
    made.close()


def large(step: int) -> dict[str, Any]:
    """A payload of 4 MiB, more than a small disk takes."""
    return payload(step) | {"model_state": {"w": torch.full((512, 1024), float(step))}, "training_state": {"m": torch.ones(512, 1024)}}


def check_saved(saving: CheckpointWriter, step: int) -> None:
    assert saving.failure is None and saving.committed == step
    point = auto_resume_helper(saving.directory)
    assert point.step == step and not point.skipped
    assert os.listdir(saving.directory) == [f"step-{step:08d}"]


# -- in the background ---------------------------------------------------------------------------------------------------------


def test_what_is_written_is_what_was_there_at_the_call(saving: CheckpointWriter) -> None:
    """The tensors change while the thread has not begun to write."""
    go, live = threading.Event(), payload(2)
    saving.save(2, **live, before_write=lambda: go.wait(30) or pytest.fail("nobody said go"))
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


def test_rows_are_flushed_first_and_in_the_thread(saving: CheckpointWriter) -> None:
    seen: list[Any] = []
    saving.save(2, **payload(2), before_write=lambda: seen.append((threading.current_thread(), os.listdir(saving.directory))))
    saving.wait()
    [(thread, there)] = seen
    assert thread is not threading.main_thread() and there == ["step-00000001"]


def test_a_save_waits_for_the_one_before(saving: CheckpointWriter, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_hashes_taken_while_writing_are_those_of_the_files(saving: CheckpointWriter) -> None:
    saving.save(2, **large(2))
    saving.wait()
    path = saving.directory / "step-00000002"
    for name, entry in read_manifest(path)["files"].items():
        assert entry == {"size": (path / name).stat().st_size, "sha256": file_digest(path / name)}


def test_a_process_that_ends_without_asking_finishes_the_file(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path; from linnaeus.checkpoint import CheckpointWriter; from tests.checkpoint.test_writer import large\n"
        f"CheckpointWriter(Path({str(tmp_path)!r}), 1, 0).save(3, **large(3), before_write=lambda: __import__('time').sleep(0.3))\n"
        "raise KeyError('the run went wrong')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert done.returncode == 1 and "the run went wrong" in done.stderr
    assert auto_resume_helper(tmp_path).step == 3


# -- mistakes are not matters of the disk --------------------------------------------------------------------------------------


def test_what_is_not_plain_is_refused_at_the_call(saving: CheckpointWriter) -> None:
    with pytest.raises(TypeError, match="training_state"):
        saving.save(2, **(payload(2) | {"training_state": {"a": {1, 2}}}))
    saving.wait()
    check_saved(saving, 1)


@pytest.mark.parametrize("by", ["wait", "save", "close"])
def test_a_bug_in_the_thread_is_raised_once(saving: CheckpointWriter, by: str, errors: Callable[[], list[str]]) -> None:
    saving.save(2, **payload(2), before_write=lambda: {}["bug"])  # type: ignore[func-returns-value]
    with pytest.raises(KeyError, match="bug"):
        saving.save(3, **payload(3)) if by == "save" else getattr(saving, by)()
    assert errors() == []
    saving.save(4, **payload(4))
    saving.wait()
    check_saved(saving, 4)


# -- the disk refuses ----------------------------------------------------------------------------------------------------------


def refused(saving: CheckpointWriter, said: list[str], *words: str, stands: int | None = 1) -> None:
    """Step 2 failed with one loud line, and nothing of it is left."""
    assert len(said) == 1, said
    standing = "There is NO checkpoint" if stands is None else f"The newest good checkpoint is that of step {stands}"
    for word in ("checkpoint of step 2 could NOT be written", standing, "the next save tries again", *words):
        assert word in said[0]
    assert saving.failure is not None and saving.failure.startswith("step 2: ") and "\n" not in saving.failure
    assert saving.committed == 1
    if stands is not None:
        assert os.listdir(saving.directory) == [f"step-{stands:08d}"]
        assert auto_resume_helper(saving.directory).step == stands


def try_again(saving: CheckpointWriter, said: Callable[[], list[str]]) -> None:
    saving.save(3, **large(3))
    saving.wait()
    check_saved(saving, 3)
    assert said() == []


REFUSED_CALLS = [("mkdir", 0), ("open", 0), ("write", 0), ("write", 2), ("fsync", 0), ("fsync", 3), ("rename", 0), ("close", 1)]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize(("name", "after"), REFUSED_CALLS)
def test_any_call_that_fails(
    saving: CheckpointWriter, errors: Callable[[], list[str]], name: str, after: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calls are those of `os`, in the writer's thread, after some that succeed; `close` fails having closed."""
    calls, real = 0, getattr(os, name)

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        if threading.current_thread() is threading.main_thread():
            return real(*args, **kwargs)
        calls += 1
        if name == "close":
            real(*args, **kwargs)
        if calls > after and (name != "close" or calls == after + 1):  # deleting what is left closes too
            raise OSError(code, os.strerror(code))
        return None if name == "close" else real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, name, failing)
        saving.save(2, **large(2))
        saving.wait()
    assert calls > after, "the failure was not reached"
    if name == "open":  # deleting opens too: what is left goes with the next save
        [left] = saving.directory.glob(f"{TEMPORARY}*")
        shutil.rmtree(left)
    refused(saving, errors(), os.strerror(code))
    try_again(saving, errors)


def test_short_writes_are_completed(saving: CheckpointWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, memoryview(data)[:70_001]))
    saving.save(2, **large(2))
    saving.wait()
    check_saved(saving, 2)
    assert_same(auto_resume_helper(saving.directory).checkpoint.model_state, large(2)["model_state"])  # type: ignore[union-attr]


@pytest.mark.parametrize("limit", [0, 100, 3_000_000])
def test_a_limit_on_the_size_of_files(saving: CheckpointWriter, errors: Callable[[], list[str]], limit: int) -> None:
    """What the system itself refuses: within the first file, or within the second."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        parts = large(2) if limit < 1000 else large(2) | {"model_state": {"w": torch.ones(5)}}
        parts["training_state"] = {"m": torch.ones(1024, 1024)}
        saving.save(2, **parts)
        saving.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    refused(saving, errors(), "File too large", "ulimit")
    try_again(saving, errors)


@contextlib.contextmanager
def small_disk(path: Path, size: str) -> Iterator[None]:
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip("may not mount")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.parametrize("free_kib", [0, 100, 3000, 5500])
def test_a_full_disk(tmp_path: Path, errors: Callable[[], list[str]], free_kib: int) -> None:
    """A real one. It fills up in the first file or in the second; rows wait meanwhile; room made, everything is caught up."""
    with small_disk(tmp_path / "disk", "20m"):
        rows = RowWriter(tmp_path / "disk" / "metrics.jsonl")
        saving = CheckpointWriter(tmp_path / "disk" / "checkpoints", keep_last=1, keep_best=0)
        rows.log(1, {"x": 1})
        saving.save(1, **payload(1), before_write=rows.sync)
        saving.wait()
        ballast = tmp_path / "disk" / "ballast"
        with open(ballast, "wb") as file:
            file.write(bytes(shutil.disk_usage(tmp_path / "disk").free - free_kib * 1024))
        parts = large(2) | {"training_state": {"m": torch.ones(1024, 1024)}}
        saving.save(2, **parts)
        saving.wait()
        refused(saving, errors(), "No space left on device", "free some space")
        while not rows._waiting:
            rows.log(2, {"x": "long " * 1000})
        assert len(errors()) == 1
        saving.save(2, **payload(2), before_write=rows.sync)
        saving.wait()
        refused(saving, errors(), "metrics.jsonl")
        ballast.unlink()
        saving.save(3, **large(3), before_write=rows.sync)
        saving.wait()
        check_saved(saving, 3)
        assert RowWriter(rows.path).rows == rows.rows
        saving.close()
        rows.close()


def test_a_disk_that_turned_read_only(tmp_path: Path, errors: Callable[[], list[str]]) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, "20m"):
        saving = CheckpointWriter(disk / "checkpoints", keep_last=1, keep_best=0)
        saving.save(1, **payload(1))
        saving.wait()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        saving.save(2, **payload(2))
        saving.wait()
        refused(saving, errors(), "Read-only file system", "mounted for writing")
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        try_again(saving, errors)


def test_a_run_directory_that_was_deleted_is_not_made_again(saving: CheckpointWriter, errors: Callable[[], list[str]]) -> None:
    run = saving.directory.parent
    shutil.rmtree(run)
    saving.save(2, **payload(2))
    saving.wait()
    refused(saving, errors(), "No such file or directory", "bring the run directory back", stands=None)
    assert not run.exists()
    run.mkdir()
    try_again(saving, errors)


def test_a_run_directory_that_vanishes_while_it_is_written_to(
    saving: CheckpointWriter, errors: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, real = saving.directory.parent, torch.save

    def rug(*args: Any) -> None:
        real(*args)
        run.rename(run.with_name("elsewhere"))

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", rug)
        saving.save(2, **payload(2))
        saving.wait()
    refused(saving, errors(), "bring the run directory back", stands=None)
    assert not run.exists()
    run.with_name("elsewhere").rename(run)
    try_again(saving, errors)


def test_rows_that_are_not_on_the_disk_keep_their_checkpoint_off_it(saving: CheckpointWriter, errors: Callable[[], list[str]]) -> None:
    rows = RowWriter(saving.directory.parent / "metrics.jsonl")
    rows.log(1, {"x": 1})
    rows.path.unlink()
    saving.save(2, **payload(2), before_write=rows.sync)
    saving.wait()
    refused(saving, errors(), "metrics.jsonl")
    rows.close()


def test_the_checkpoint_that_stands_must_be_whole(saving: CheckpointWriter, errors: Callable[[], list[str]]) -> None:
    (saving.directory / "step-00000001" / MODEL).unlink()
    saving.save(2, **payload(2), before_write=lambda: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error")))
    saving.wait()
    assert "There is NO checkpoint" in errors()[0]


def test_the_same_step_again_fails_and_the_first_one_stays(
    saving: CheckpointWriter, errors: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replacing takes two renames; the second fails."""
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
    assert len(errors()) == 1 and saving.failure
    assert os.listdir(saving.directory) == ["step-00000001"]
    assert "attempt" not in auto_resume_helper(saving.directory).checkpoint.state  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["rename", "rmtree"])
def test_what_cannot_be_deleted_does_not_undo_what_was_written(
    saving: CheckpointWriter, errors: Callable[[], list[str]], name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    owner: Any = os if name == "rename" else shutil
    real = getattr(owner, name)

    def failing(path: Any, *rest: Any, **kwargs: Any) -> Any:
        if "step-00000001" in str(path):
            raise OSError(errno.EACCES, "Permission denied")
        return real(path, *rest, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing)
        saving.save(2, **payload(2))
        saving.wait()
    assert saving.failure is None and saving.committed == 2
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any("step-00000001" in line and "Permission denied" in line for line in warned) and errors() == []
    assert auto_resume_helper(saving.directory).step == 2
    try_again(saving, errors)


def test_leftovers_and_odd_things_in_the_directory_do_no_harm(saving: CheckpointWriter) -> None:
    """What a killed process left behind, half-deleted checkpoints, and files where directories are expected."""
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
    fresh = CheckpointWriter(saving.directory, keep_last=1, keep_best=0)
    point = auto_resume_helper(saving.directory)
    assert point.step == 1 and [Path(path).name for path, _ in point.skipped] == ["step-00000007", "step-00000004"]
    fresh.resume(point.step)
    for step in (5, 6, 8):
        fresh.save(step, **payload(step))
        fresh.wait()
        assert fresh.failure is None
    assert [step for step, _ in list_checkpoints(saving.directory)] == [8]
    assert [path.name for path in saving.directory.iterdir() if path.is_dir()] == ["step-00000008"]
    fresh.close()
