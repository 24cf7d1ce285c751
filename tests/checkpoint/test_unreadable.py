"""A disk that cannot be read at present: the read is retried, then the run is refused, and no file changes."""

import errno
import io
import os
import resource
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from linnaeus import train
from linnaeus.checkpoint import CheckpointWriter, auto_resume_helper, find_resume_point, list_checkpoints, load_checkpoint, loading
from linnaeus.checkpoint.format import MANIFEST, MODEL, STATE, TRAINING
from linnaeus.checkpoint.resume import NOTE
from linnaeus.checkpoint.retention import prune
from linnaeus.errors import ConfigError
from linnaeus.files import Unreadable, reading, system_error, with_retries
from tests import fork_server, runs
from tests.checkpoint.conftest import fail_for
from tests.checkpoint.test_resume import Ranks, damage

RETRY_DELAYS = reading.RETRY_DELAYS  # a fixture sets them to 0
ATTEMPTS = 1 + len(RETRY_DELAYS)
CODES = [errno.ESTALE, errno.EIO, errno.EACCES, errno.EMFILE, errno.ENOMEM]


def content_of(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


class FailingDigest:
    """A `file_digest` that raises `OSError` for files called `name`, the first `times` times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int, name: str = MODEL, times: int = 10**9) -> None:
        self.code, self.name, self.left, self.calls, self.real = code, name, times, 0, loading.file_digest
        monkeypatch.setattr(loading, "file_digest", self)

    def __call__(self, path: Path) -> str:
        if Path(path).name == self.name:
            self.calls += 1
            if self.left > 0:
                self.left -= 1
                raise OSError(self.code, os.strerror(self.code))  # without the name of the file, as `read` raises it
        return self.real(path)


@pytest.mark.parametrize("code", CODES)
def test_an_unreadable_checkpoint_is_not_skipped(saved: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before, failing = content_of(saved), FailingDigest(monkeypatch, code)
    for choice in ("auto", str(saved / "step-00000100"), str(saved)):
        failing.calls = 0
        with pytest.raises(Unreadable) as caught:
            find_resume_point(choice, saved)
        line = str(caught.value)
        assert os.strerror(code) in line and "check the disk" in line and "\n" not in line
        assert MODEL in line and ("step-00000100" if choice.endswith("100") else "step-00000200") in line
        assert failing.calls == ATTEMPTS
    assert content_of(saved) == before


@pytest.mark.parametrize("code", CODES)
def test_a_temporary_error_is_retried(saved: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    FailingDigest(monkeypatch, code, times=ATTEMPTS - 1)
    point = auto_resume_helper(saved)
    assert point.step == 200 and point.skipped == []


def test_a_damaged_checkpoint_is_skipped_without_retries(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = FailingDigest(monkeypatch, errno.EIO, "no such name")
    damage(saved / "step-00000200")
    (saved / "step-00000100" / STATE).unlink()
    point = auto_resume_helper(saved)
    assert point.checkpoint is None and len(point.skipped) == 2 and failing.calls == 0


def test_all_ranks_raise_the_error(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, failing = Ranks(), FailingDigest(monkeypatch, errno.ESTALE)
    for is_master, send in ((True, ranks.master), (False, ranks.other)):
        with pytest.raises(ConfigError, match=f"step-00000200/{MODEL} cannot be read"):
            auto_resume_helper(saved, is_master=is_master, broadcast_object=send)
    assert failing.calls == ATTEMPTS, "the other rank reads nothing"


def test_a_read_error_of_another_rank_is_an_os_error(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`train.restore.find_point` sends an `OSError` to the other ranks; a plain `ConfigError` would end only one process."""
    ranks = Ranks()
    auto_resume_helper(saved, is_master=True, broadcast_object=ranks.master)

    def failing_load(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"unable to open file <{TRAINING}> in read-only mode: Too many open files (24)")

    monkeypatch.setattr(torch, "load", failing_load)
    with pytest.raises(OSError, match="Too many open files") as caught:
        auto_resume_helper(saved, is_master=False, broadcast_object=ranks.other)
    assert isinstance(caught.value, ConfigError) and TRAINING in str(caught.value)


@pytest.mark.parametrize("where", ["list", "stat", "manifest", "note"])
def test_a_read_error_anywhere_else(saved: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = saved / "step-00000100"
    if where == "note":
        find_resume_point(str(choice), saved)  # writes the rollback note
    before = content_of(saved)
    name = {"list": "checkpoints", "stat": MODEL, "manifest": MANIFEST, "note": NOTE}[where]
    with monkeypatch.context() as patch:
        fail_for(patch, *((os, "stat") if where in ("list", "stat") else (io, "open")), name, errno.ESTALE)
        with pytest.raises(Unreadable, match="Stale file handle"):
            find_resume_point(str(choice) if where == "note" else "auto", saved)
    assert content_of(saved) == before


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("unable to mmap 251659583 bytes from file </x/y>: Cannot allocate memory (12)"), errno.ENOMEM),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 251658240 bytes. Error code 12 (Cannot allocate memory)"), 12),
        (MemoryError("Cannot allocate memory (os error 12)"), errno.ENOMEM),
        (MemoryError(), errno.ENOMEM),
        (OSError("Input/output error (os error 5)"), errno.EIO),
        (FileNotFoundError("No such file or directory: /x/y"), errno.ENOENT),
        (RuntimeError("PytorchStreamReader failed reading zip archive: failed finding central directory"), None),
        (ValueError("12 is not 13"), None),
    ],
)
def test_the_system_error_is_found_in_the_message_of_a_loader(error: Exception, code: int | None) -> None:
    found = system_error(error, Path("a/b"))
    assert (found.errno if found else None) == code
    assert found is None or "a/b" in str(found)


def test_a_lack_of_memory_is_not_damage(saved: Path) -> None:
    """Uses the real loaders in a process with limited memory."""
    limited = f"""
import resource, sys, torch
from linnaeus.checkpoint import load_checkpoint, save_checkpoint
big = {{"w": torch.zeros(16 << 20)}}
path = save_checkpoint({str(saved)!r}, 300, model_state=big, training_state=big, state={{}})
load_checkpoint(path)
del big
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20), -1))
try:
    load_checkpoint(path, verified=True)
except OSError as error:
    print(type(error).__name__, error.errno)
"""
    done = fork_server.run([sys.executable, "-c", limited], cwd=fork_server.ROOT, check=True)
    assert done.stdout.split() == ["OSError", str(errno.ENOMEM)], done.stdout + done.stderr


def test_a_lack_of_file_descriptors_is_not_damage(saved: Path) -> None:
    load_checkpoint(saved / "step-00000200")  # imports what it needs
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(name) for name in os.listdir("/proc/self/fd")) + 1, hard))
    opened = []
    try:
        with pytest.raises(OSError, match="Too many open files"):
            while len(opened) < 4096:
                opened.append(os.open("/", os.O_RDONLY))
        with pytest.raises(OSError, match="Too many open files") as caught:
            load_checkpoint(saved / "step-00000200")
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caught.value.errno == errno.EMFILE


def test_an_absent_file_is_not_retried() -> None:
    calls: list[int] = []

    def read() -> None:
        calls.append(1)
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "x")

    with pytest.raises(FileNotFoundError):
        with_retries(read)
    assert len(calls) == 1 and 1.0 <= sum(RETRY_DELAYS) <= 15.0


def test_retention_deletes_nothing_while_the_disk_fails(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content_of(saved)
    with monkeypatch.context() as patch:
        fail_for(patch, os, "stat", f"step-00000100/{MODEL}", errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            prune(saved, 200, keep_last=1, keep_best=0)
    assert content_of(saved) == before
    assert prune(saved, 200, keep_last=1, keep_best=0) == ["step-00000100"]


def test_a_kill_in_the_first_save_leaves_no_checkpoint(tmp_path: Path) -> None:
    """The run starts at step 0 without a message."""
    (tmp_path / ".tmp-step-00000001-77").mkdir()
    (tmp_path / ".tmp-step-00000001-77" / MODEL).write_bytes(b"half")
    CheckpointWriter(tmp_path, keep_last=1, keep_best=0).close()
    point = auto_resume_helper(tmp_path)
    assert point.checkpoint is None and point.skipped == [] and list_checkpoints(tmp_path) == []


def test_a_run_is_refused_while_the_disk_fails_and_resumes_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = ["trainer.length=2epochs", "schedule.checkpoint=[1steps]", "schedule.keep_last=9"]
    whole = runs.run("vectors", tmp_path / "whole", *more)
    with runs.killed(train.loop, "train_one_step", 5):
        runs.run("vectors", tmp_path / "again", *more)
    run = runs.run_path(runs.configuration("vectors", tmp_path / "again", *more))
    steps = [step for step, _ in list_checkpoints(run / "checkpoints")]
    assert len(steps) >= 2
    kept = {name: text for name, text in content_of(run).items() if name.startswith(("checkpoints/step-", "metrics", "validation"))}
    with monkeypatch.context() as patch:
        FailingDigest(patch, errno.ESTALE)
        with pytest.raises(ConfigError, match=r"Stale file handle.*check the disk"):
            runs.run("vectors", tmp_path / "again", *more)
    now = content_of(run)
    assert {name: now.get(name) for name in kept} == kept and [step for step, _ in list_checkpoints(run / "checkpoints")] == steps
    runs.run("vectors", tmp_path / "again", *more)
    assert runs.differences(whole, run) == [] and "was skipped" not in (run / "train.log").read_text()
