"""A disk that cannot be read now damages nothing: it is read again, then the launch is refused with everything as it was."""

from __future__ import annotations

import errno
import io
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from linnaeus import train
from linnaeus.checkpoint import CheckpointWriter, auto_resume_helper, disk, find_resume_point, format, list_checkpoints, load_checkpoint
from linnaeus.checkpoint.format import MANIFEST, MODEL, STATE, TRAINING
from linnaeus.checkpoint.loading import CheckpointDamaged
from linnaeus.checkpoint.retention import prune
from linnaeus.checkpoint.rollback import NOTE
from linnaeus.errors import ConfigError
from linnaeus.files import Unreadable, system_error, tried_again
from tests import runs
from tests.checkpoint.test_resume import Ranks, spoil

TRIES = 1 + len(disk.PAUSES)
CODES = [errno.ESTALE, errno.EIO, errno.EACCES, errno.EMFILE, errno.ENOMEM]


def content_of(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


class Trouble:
    """`file_digest` of a disk that fails for files of this name: always, or so many times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int, name: str = MODEL, times: int = 10**9) -> None:
        self.code, self.name, self.left, self.calls, self.real = code, name, times, 0, format.file_digest
        monkeypatch.setattr(format, "file_digest", self)

    def __call__(self, path: Path) -> str:
        if Path(path).name == self.name:
            self.calls += 1
            if self.left > 0:
                self.left -= 1
                raise OSError(self.code, os.strerror(self.code))  # as a read raises it: without the file's name
        return self.real(path)


@pytest.mark.parametrize("code", CODES)
def test_an_unreadable_checkpoint_is_not_walked_past(saved: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before, trouble = content_of(saved), Trouble(monkeypatch, code)
    for choice in ("auto", str(saved / "step-00000100"), str(saved)):
        trouble.calls = 0
        with pytest.raises(Unreadable) as caught:
            find_resume_point(choice, saved)
        line = str(caught.value)
        assert os.strerror(code) in line and "see to that disk" in line and "\n" not in line
        assert MODEL in line and ("step-00000100" if choice.endswith("100") else "step-00000200") in line
        assert trouble.calls == TRIES
    assert content_of(saved) == before


@pytest.mark.parametrize("code", CODES)
def test_trouble_that_passes_costs_nothing(saved: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    Trouble(monkeypatch, code, times=TRIES - 1)
    point = auto_resume_helper(saved)
    assert point.step == 200 and point.skipped == []


def test_damage_is_still_walked_past_at_once(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trouble = Trouble(monkeypatch, errno.EIO, "no such name")
    spoil(saved / "step-00000200")
    (saved / "step-00000100" / STATE).unlink()
    point = auto_resume_helper(saved)
    assert point.checkpoint is None and len(point.skipped) == 2 and trouble.calls == 0


def test_all_ranks_refuse_with_the_reason(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, trouble = Ranks(), Trouble(monkeypatch, errno.ESTALE)
    for is_master, send in ((True, ranks.master), (False, ranks.other)):
        with pytest.raises(ConfigError, match=f"step-00000200/{MODEL} cannot be read"):
            auto_resume_helper(saved, is_master=is_master, broadcast_object=send)
    assert trouble.calls == TRIES, "the other rank reads nothing"


def test_another_rank_that_cannot_read_says_so_as_an_os_error(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`train.restore.find_point` tells the others of an OSError; a plain ConfigError would end one process alone."""
    ranks = Ranks()
    auto_resume_helper(saved, is_master=True, broadcast_object=ranks.master)

    def no_more(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"unable to open file <{TRAINING}> in read-only mode: Too many open files (24)")

    monkeypatch.setattr(torch, "load", no_more)
    with pytest.raises(OSError, match="Too many open files") as caught:
        auto_resume_helper(saved, is_master=False, broadcast_object=ranks.other)
    assert isinstance(caught.value, ConfigError) and TRAINING in str(caught.value)


@pytest.mark.parametrize("where", ["list", "stat", "manifest", "note"])
def test_trouble_at_any_other_place(saved: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = saved / "step-00000100"
    if where == "note":
        find_resume_point(str(choice), saved)  # the note tells what was written since
    before = content_of(saved)
    names = {"list": ["checkpoints"], "stat": [MODEL], "manifest": [MANIFEST], "note": [NOTE]}[where]
    target, name = (os, "stat") if where in ("list", "stat") else (io, "open")
    real = getattr(target, name)

    def broken(file: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(file, int) and Path(file).name in names:
            raise OSError(errno.ESTALE, "Stale file handle", str(file))
        return real(file, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(target, name, broken)
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
def test_what_the_system_said_is_found_in_the_words_of_loaders(error: Exception, code: int | None) -> None:
    found = system_error(error, Path("a/b"))
    assert (found.errno if found else None) == code
    assert found is None or "a/b" in str(found)


def test_memory_that_is_short_is_no_damage(saved: Path) -> None:
    """The loaders themselves, in a process that may map no more."""
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
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", limited], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split() == ["OSError", str(errno.ENOMEM)], done.stdout + done.stderr


def test_descriptors_that_are_used_up_are_no_damage(saved: Path) -> None:
    load_checkpoint(saved / "step-00000200")  # what is imported on the way is
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(int(name) for name in os.listdir("/proc/self/fd")) + 1, hard))
    held = []
    try:
        with pytest.raises(OSError, match="Too many open files"):
            while len(held) < 4096:
                held.append(os.open("/", os.O_RDONLY))
        with pytest.raises(OSError, match="Too many open files") as caught:
            load_checkpoint(saved / "step-00000200")
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caught.value.errno == errno.EMFILE


def test_a_file_that_is_not_there_is_not_waited_for() -> None:
    calls: list[int] = []

    def read() -> None:
        calls.append(1)
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "x")

    with pytest.raises(FileNotFoundError):
        tried_again(read)
    assert len(calls) == 1 and 1.0 <= sum(disk_pauses()) <= 15.0


def disk_pauses() -> tuple[float, ...]:
    """As the program has them: the fixture of this folder makes them 0."""
    line = next(line for line in Path(disk.__file__).read_text().splitlines() if line.startswith("PAUSES = "))
    return tuple(float(text) for text in line.partition("(")[2].partition(")")[0].split(","))


def test_retention_deletes_nothing_while_the_disk_does_not_say(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, real = content_of(saved), os.stat

    def broken(file: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(file, int) and Path(file).name == MODEL and "100" in str(file):
            raise OSError(errno.EIO, "Input/output error", str(file))
        return real(file, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", broken)
        with pytest.raises(OSError, match="Input/output error"):
            prune(saved, 200, keep_last=1, keep_best=0)
    assert content_of(saved) == before
    assert prune(saved, 200, keep_last=1, keep_best=0) == ["step-00000100"]


def test_a_kill_in_the_first_write_of_all_needs_no_consent(tmp_path: Path) -> None:
    """What is not committed is no checkpoint: the run begins, and says nothing."""
    (tmp_path / ".tmp-step-00000001-77").mkdir()
    (tmp_path / ".tmp-step-00000001-77" / MODEL).write_bytes(b"half")
    CheckpointWriter(tmp_path, keep_last=1, keep_best=0).close()
    point = auto_resume_helper(tmp_path)
    assert point.checkpoint is None and point.skipped == [] and list_checkpoints(tmp_path) == []


def test_a_run_whose_disk_is_away_is_refused_and_goes_on_once_it_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = ["trainer.length=2epochs", "schedule.checkpoint=[1steps]", "schedule.keep_last=9"]
    whole = runs.run("vectors", tmp_path / "whole", *more)
    with runs.killed(train.loop, "train_one_step", 5):
        runs.run("vectors", tmp_path / "again", *more)
    run = runs.run_path(runs.configuration("vectors", tmp_path / "again", *more))
    steps = [step for step, _ in list_checkpoints(run / "checkpoints")]
    assert len(steps) >= 2
    kept = {name: text for name, text in content_of(run).items() if name.startswith(("checkpoints/step-", "metrics", "validation"))}
    with monkeypatch.context() as patch:
        Trouble(patch, errno.ESTALE)
        with pytest.raises(ConfigError, match=r"Stale file handle.*see to that disk"):
            runs.run("vectors", tmp_path / "again", *more)
    now = content_of(run)
    assert {name: now.get(name) for name in kept} == kept and [step for step, _ in list_checkpoints(run / "checkpoints")] == steps
    runs.run("vectors", tmp_path / "again", *more)
    assert runs.differences(whole, run) == [] and "was skipped" not in (run / "train.log").read_text()


def test_damage_keeps_its_name(saved: Path) -> None:
    (saved / "step-00000200" / TRAINING).write_bytes(b"")
    with pytest.raises(CheckpointDamaged, match="0 bytes"):
        load_checkpoint(saved / "step-00000200")
