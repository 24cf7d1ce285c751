"""The resume point: rank 0 finds the newest checkpoint that verifies, and all ranks load it."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from linnaeus.checkpoint import CheckpointWriter, auto_resume_helper, find_resume_point, loading, save_checkpoint
from linnaeus.checkpoint.format import EMA, FORMAT, MODEL, STATE, TRAINING
from linnaeus.checkpoint.resume import NOTE, contains_checkpoint
from linnaeus.checkpoint.retention import rename_newer
from linnaeus.errors import ConfigError
from tests.checkpoint.conftest import payload
from tests.checkpoint.test_format import do_damage, sign


def damage(path: Path, name: str = MODEL) -> None:
    """Change a bit of a file of a checkpoint."""
    do_damage(path / name, "flip")


def test_damaged_checkpoints_are_skipped_with_their_reasons(saved: Path) -> None:
    save_checkpoint(saved, 300, **payload(300))
    damage(saved / "step-00000300", TRAINING)
    (saved / "step-00000200" / MODEL).unlink()
    point = auto_resume_helper(saved)
    assert point.step == 100 and point.checkpoint is not None and point.checkpoint.step == 100
    assert [(Path(p).name, reason) for p, reason in point.skipped] == [
        ("step-00000300", f"{TRAINING} was altered (its hash does not match)"),
        ("step-00000200", f"{MODEL} is missing"),
    ]


def test_no_checkpoint_to_resume_from(tmp_path: Path, saved: Path) -> None:
    assert auto_resume_helper(tmp_path / "absent").checkpoint is None
    for path in saved.iterdir():
        damage(path)
    point = auto_resume_helper(saved)
    assert point.checkpoint is None and point.step == 0 and len(point.skipped) == 2


def test_order_is_by_step_not_by_time_or_name(tmp_path: Path) -> None:
    for step in (99_999_999, 100_000_000, 5):
        save_checkpoint(tmp_path, step, **payload(step))
    assert auto_resume_helper(tmp_path).step == 100_000_000


class Ranks:
    """`broadcast_object` of two ranks that are called one after the other."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def master(self, value: Any) -> Any:
        self.sent.append(value)
        return value

    def other(self, value: Any) -> Any:
        assert not value, "only rank 0 sends a value"
        return self.sent.pop(0)


def test_all_ranks_load_the_choice_of_rank_0(saved: Path) -> None:
    ranks = Ranks()
    damage(saved / "step-00000200")
    master = auto_resume_helper(saved, is_master=True, broadcast_object=ranks.master)
    save_checkpoint(saved, 300, **payload(300))  # the other rank must not search itself
    other = auto_resume_helper(saved, is_master=False, broadcast_object=ranks.other)
    assert master.step == other.step == 100 and master.skipped == other.skipped


def test_other_ranks_do_not_repeat_the_hashing(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks, hashed = Ranks(), []
    real = loading.file_digest
    monkeypatch.setattr(loading, "file_digest", lambda path: (hashed.append(path), real(path))[1])
    auto_resume_helper(saved, is_master=True, broadcast_object=ranks.master)
    assert sorted(path.name for path in hashed) == sorted([MODEL, EMA, TRAINING, STATE])
    auto_resume_helper(saved, is_master=False, broadcast_object=ranks.other)
    assert len(hashed) == 4


def test_a_newer_format_stops_the_resume(saved: Path) -> None:
    """A resume from the older checkpoint would rename the newer one, and delete it when the run has passed its step."""
    sign(saved / "step-00000200", format=FORMAT + 1)
    with pytest.raises(ConfigError, match=r"step-00000200: it has format 2.*update linnaeus, or name an older .*run\.resume=PATH"):
        auto_resume_helper(saved)
    assert find_resume_point(str(saved / "step-00000100"), saved).step == 100, "the user may decide to lose its updates"


def test_a_named_checkpoint_of_a_newer_format_is_a_config_error(saved: Path, tmp_path: Path) -> None:
    sign(saved / "step-00000200", format=FORMAT + 1)
    for own in (saved, tmp_path / "other", ""):
        with pytest.raises(ConfigError, match=r"run\.resume.*step-00000200.*format 2.*update linnaeus"):
            find_resume_point(str(saved / "step-00000200"), own)
    assert not (saved / NOTE).exists()


def test_all_ranks_refuse_if_every_checkpoint_is_of_a_newer_format(saved: Path) -> None:
    """A start at step 0 would rename them and delete them later."""
    ranks = Ranks()
    for path in saved.iterdir():
        sign(path, format=FORMAT + 1)
    for is_master, send in ((True, ranks.master), (False, ranks.other)):
        with pytest.raises(ConfigError, match="update linnaeus"):
            auto_resume_helper(saved, is_master=is_master, broadcast_object=send)


def test_run_resume_as_a_path(saved: Path, tmp_path: Path) -> None:
    assert find_resume_point("auto", saved).step == 200
    assert find_resume_point("never", saved).checkpoint is None
    elsewhere = tmp_path / "another run" / "checkpoints"
    assert find_resume_point(str(saved / "step-00000100"), elsewhere).step == 100
    assert find_resume_point(str(saved), elsewhere).step == 200
    assert find_resume_point(str(saved.parent), elsewhere).step == 200
    save_checkpoint(elsewhere, 250, **payload(250))
    assert find_resume_point(str(saved), elsewhere).step == 250, "after a kill the run resumes from its own checkpoint"
    assert find_resume_point(str(saved / "step-00000100"), saved).step == 100, "a rollback within the run"
    assert find_resume_point(str(saved.parent), saved).step == 200
    shutil.rmtree(elsewhere)
    with pytest.raises(ConfigError, match=r"run\.resume.*no checkpoint"):
        find_resume_point(str(tmp_path / "nowhere"), elsewhere)
    damage(saved / "step-00000100")
    with pytest.raises(ConfigError, match=r"run\.resume.*damaged"):
        find_resume_point(str(saved / "step-00000100"), elsewhere)


def launch(saved: Path, choice: Path, step: int, mark: int, keep_last: int = 9) -> int:
    """Start with `run.resume=choice`, save `step` and end. Return the step from which it resumed."""
    writer = CheckpointWriter(saved, keep_last=keep_last, keep_best=0)
    assert contains_checkpoint(choice) and find_resume_point(str(choice), "").checkpoint is not None  # the first checks of a command
    point = find_resume_point(str(choice), saved)
    rename_newer(saved, point.step)
    writer.save(step, **payload(step, launch=mark))
    writer.close()
    return point.step


def test_the_same_command_after_a_kill_does_not_repeat_the_rollback(saved: Path) -> None:
    """Resume from step 100 once, later from newer checkpoints, even after the named one was deleted."""
    named = saved / "step-00000100"
    assert [launch(saved, named, step, mark=step, keep_last=1) for step in (150, 200, 250)] == [100, 150, 200]
    assert not named.exists(), "retention has deleted the named checkpoint"
    assert launch(saved, named, 300, mark=300) == 250


def test_a_kill_before_the_newer_checkpoints_are_renamed(saved: Path) -> None:
    named = saved / "step-00000100"
    assert find_resume_point(str(named), saved).step == 100  # ... and killed
    assert find_resume_point(str(named), saved).step == 100, "the rollback has abandoned step 200"
    assert launch(saved, named, 200, mark=1) == 100
    assert launch(saved, named, 300, mark=2) == 200, "this step 200 was written after the rollback"


def test_if_newer_checkpoints_are_damaged_the_named_one_is_used(saved: Path) -> None:
    named = saved / "step-00000100"
    launch(saved, named, 150, mark=1)
    damage(saved / "step-00000150")
    point = find_resume_point(str(named), saved)
    assert point.step == 100 and [Path(path).name for path, _ in point.skipped] == ["step-00000150"]


def test_after_a_start_without_a_name_naming_it_is_a_new_rollback(saved: Path) -> None:
    named = saved / "step-00000100"
    launch(saved, named, 150, mark=1)
    assert find_resume_point("auto", saved).step == 150
    assert find_resume_point(str(named), saved).step == 100
    launch(saved, named, 160, mark=2)
    assert find_resume_point(str(saved / "step-00000160"), saved).step == 160
    assert find_resume_point(str(named), saved).step == 100


def test_read_only_writes_nothing(saved: Path) -> None:
    before = sorted(path.name for path in saved.iterdir())
    for own in ("", saved):
        assert find_resume_point(str(saved / "step-00000100"), own, read_only=True).step == 100
    assert sorted(path.name for path in saved.iterdir()) == before
    (saved / NOTE).write_text("garbage")
    assert find_resume_point(str(saved / "step-00000100"), saved, read_only=True).step == 100


def test_the_named_checkpoint_may_be_deleted_once_the_run_has_its_own(saved: Path, tmp_path: Path) -> None:
    named, own = saved / "step-00000100", tmp_path / "own" / "checkpoints"
    save_checkpoint(own, 120, **payload(120))
    shutil.rmtree(saved)
    assert not contains_checkpoint(named) and contains_checkpoint(named, own)
    assert find_resume_point(str(named), own).step == 120
    damage(own / "step-00000120")
    with pytest.raises(ConfigError, match=r"run\.resume.*step-00000100"):
        find_resume_point(str(named), own)
