"""Retention, and a kill at any instant of a save: a checkpoint to resume from always exists."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from linnaeus.checkpoint import CheckpointWriter, auto_resume_helper, list_checkpoints
from linnaeus.checkpoint.choice import is_validated, run_checkpoints
from linnaeus.checkpoint.format import MODEL
from linnaeus.checkpoint.retention import choose_kept, rename_newer
from linnaeus.files import write_atomic
from tests.checkpoint.conftest import payload


def steps(directory: Path) -> list[int]:
    return [step for step, _ in list_checkpoints(directory)]


def test_last_and_best_are_kept(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, keep_last=2, keep_best=1, best_mode="min")
    for step, score in ((1, 0.9), (2, 0.2), (3, 0.5), (4, None), (5, float("nan")), (6, 0.4)):
        writer.save(step, **payload(step, score=score))
    writer.close()
    assert steps(tmp_path) == [2, 5, 6]


LOSS, R2 = {"monitor": "val/loss", "mode": "min"}, {"monitor": "val/r2", "mode": "max"}
UNKNOWN: tuple[dict[str, Any], ...] = ({}, {"run": {"config": None}})


def unnamed(monitor: str) -> dict[str, Any]:
    """Return the part of state.json by which an earlier version tells the metric of its score."""
    return {"run": {"config": {"schedule": {"best_monitor": monitor}}}}


@pytest.mark.parametrize(
    "other, own, kept",
    [
        (LOSS, R2, [2, 3]),
        (unnamed("val/loss"), unnamed("val/r2"), [2, 3]),
        (unnamed("val/loss"), R2, [2, 3]),
        (R2, R2, [1, 3]),
        (unnamed("val/r2"), R2, [1, 3]),
        *((state, R2, [1, 3]) for state in UNKNOWN),  # compared, as in earlier versions
    ],
)
def test_scores_of_two_metrics_are_not_compared(tmp_path: Path, other: Any, own: Any, kept: list[int]) -> None:
    writer = CheckpointWriter(tmp_path / "checkpoints", 1, 1, "max", "val/r2")
    for step, score, state in ((1, 0.9, other), (2, 0.5, own), (3, 0.4, own)):
        writer.save(step, **payload(step, score=score, **state))
    writer.close()
    assert steps(tmp_path / "checkpoints") == kept
    (tmp_path / "config.yaml").write_text("schedule: {best_monitor: val/r2, best_mode: max}")
    best = run_checkpoints(tmp_path, "best")
    assert [path.name for path, _ in best] == [f"step-0000000{step}" for step in kept]
    assert best[0][1].startswith("the best of 2 by val/r2 (0.")
    (tmp_path / "config.yaml").write_text("schedule: {best_monitor: val/mae, best_mode: min}")
    assert is_validated(tmp_path) is (other in UNKNOWN)


def test_the_choice_for_all_small_limits() -> None:
    """The newest is always kept, no more than the limits are kept, and of equal scores the newer one is kept."""
    scores = dict(enumerate([0.3, None, 0.9, 0.9, 0.1]))
    for last in (1, 2, 9):
        for best in (0, 1, 2, 9):
            kept = choose_kept(scores, last, best)
            assert 4 in kept and set(range(5 - last, 5)) & set(range(5)) <= kept
            assert len(kept) <= min(last, 5) + min(best, 4)
    assert choose_kept(scores, 1, 1) == {4, 3}
    assert choose_kept(scores, 1, 1, "min") == {4}
    assert choose_kept(scores, 1, 2, "min") == {4, 0}


def test_a_damaged_checkpoint_does_not_count_as_kept(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, keep_last=2, keep_best=0)
    writer.save(1, **payload(1))
    writer.save(2, **payload(2))
    writer.wait()
    (tmp_path / "step-00000002" / MODEL).write_bytes(b"cut off")
    writer.save(3, **payload(3))
    writer.close()
    assert steps(tmp_path) == [1, 3]


def test_newer_checkpoints_are_renamed_on_resume_and_deleted_once_passed(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, keep_last=3, keep_best=0)
    for step in (10, 20, 30):
        writer.save(step, **payload(step))
    writer.close()
    writer = CheckpointWriter(tmp_path, keep_last=3, keep_best=0)
    assert rename_newer(tmp_path, 10) == ["step-00000020.aside", "step-00000030.aside"]
    assert steps(tmp_path) == [10] and auto_resume_helper(tmp_path).step == 10
    writer.save(20, **payload(20))
    writer.wait()
    assert not (tmp_path / "step-00000020.aside").exists() and (tmp_path / "step-00000030.aside").exists()
    writer.save(30, **payload(30))
    writer.close()
    assert sorted(os.listdir(tmp_path)) == ["step-00000010", "step-00000020", "step-00000030"]


class Killed(BaseException):
    """Raised in place of a kill of the process."""


def kill_at(monkeypatch: pytest.MonkeyPatch, n: int) -> Callable[[], int]:
    """Make the n-th call that changes the disk, and every later one, raise `Killed`. Return a function that counts the calls."""
    calls = 0

    def killing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls >= n:
                raise Killed
            return real(*args, **kwargs)

        return call

    for module, name in ((os, "rename"), (os, "replace"), (os, "fsync"), (shutil, "rmtree"), (torch, "save"), (os, "unlink")):
        monkeypatch.setattr(module, name, killing(getattr(module, name)))
    return lambda: calls


@pytest.mark.parametrize("same_step", [False, True])
def test_killed_at_any_instant_of_a_save(tmp_path: Path, same_step: bool) -> None:
    """Step 2 exists with keep_last=1; the save of step 3, or of step 2 again, is killed after every possible number of calls."""
    target, instants = (2 if same_step else 3), 0
    for n in range(1, 100):
        directory = tmp_path / str(n)
        writer = CheckpointWriter(directory, keep_last=1, keep_best=0)
        writer.save(2, **payload(2))
        writer.wait()
        again = payload(target, attempt=2)
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, n)
            try:
                writer.save(target, **again)
                writer.wait()
                break
            except Killed:
                instants += 1
        writer = CheckpointWriter(directory, keep_last=1, keep_best=0)  # the next start
        point = auto_resume_helper(directory)
        assert point.checkpoint is not None and point.step >= 2 and not point.skipped, n
        rename_newer(directory, point.step)
        writer.save(target, **again)
        writer.close()
        assert os.listdir(directory) == [f"step-{target:08d}"], n
        assert auto_resume_helper(directory).checkpoint.state["attempt"] == 2  # type: ignore[union-attr]
    assert instants >= 10, "the save was killed at too few instants"


def test_negative_control_deleting_before_committing_loses_the_run(tmp_path: Path) -> None:
    """The test above fails for a writer that deletes the old checkpoint first."""
    writer = CheckpointWriter(tmp_path, keep_last=1, keep_best=0)
    writer.save(2, **payload(2))
    writer.wait()
    shutil.rmtree(tmp_path / "step-00000002")
    with pytest.MonkeyPatch.context() as patch:
        kill_at(patch, 1)
        with pytest.raises(Killed):
            writer.save(3, **payload(3))
            writer.wait()
    assert auto_resume_helper(tmp_path).checkpoint is None


def test_write_atomic_leaves_the_old_file_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_atomic(path, "old")
    for n in range(1, 10):
        with pytest.MonkeyPatch.context() as patch:
            kill_at(patch, n)
            try:
                write_atomic(path, "new, and longer")
                break
            except Killed:
                assert path.read_text() in ("old", "new, and longer")
    assert n > 2 and path.read_text() == "new, and longer"
