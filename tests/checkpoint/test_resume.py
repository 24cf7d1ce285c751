"""The newest checkpoint that verifies is found, by one rank for all."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from linnaeus.checkpoint import auto_resume_helper, find_resume_point, save_checkpoint
from linnaeus.checkpoint.format import FORMAT, MODEL, TRAINING
from linnaeus.config.errors import ConfigError
from tests.checkpoint.conftest import payload


def spoil(path: Path, name: str = MODEL) -> None:
    content = bytearray((path / name).read_bytes())
    content[-1] ^= 1
    (path / name).write_bytes(bytes(content))


def test_walks_back_and_says_what_it_skipped(saved: Path) -> None:
    save_checkpoint(saved, 300, **payload(300))
    spoil(saved / "step-00000300", TRAINING)
    (saved / "step-00000200" / MODEL).unlink()
    point = auto_resume_helper(saved)
    assert point.step == 100 and point.checkpoint is not None and point.checkpoint.step == 100
    assert [(Path(p).name, reason) for p, reason in point.skipped] == [
        ("step-00000300", f"{TRAINING} was altered (its hash does not match)"),
        ("step-00000200", f"{MODEL} is missing"),
    ]


def test_nothing_to_continue(tmp_path: Path, saved: Path) -> None:
    assert auto_resume_helper(tmp_path / "absent").checkpoint is None
    for path in saved.iterdir():
        spoil(path)
    point = auto_resume_helper(saved)
    assert point.checkpoint is None and point.step == 0 and len(point.skipped) == 2


def test_order_is_by_step_not_by_time_or_name(tmp_path: Path) -> None:
    for step in (99_999_999, 100_000_000, 5):
        save_checkpoint(tmp_path, step, **payload(step))
    assert auto_resume_helper(tmp_path).step == 100_000_000


class Ranks:
    """`broadcast_object` of two ranks played one after the other."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def master(self, value: Any) -> Any:
        self.sent.append(value)
        return value

    def other(self, value: Any) -> Any:
        assert not value, "only rank 0 has something to say"
        return self.sent.pop(0)


def test_all_ranks_take_what_rank_0_chose(saved: Path) -> None:
    ranks = Ranks()
    spoil(saved / "step-00000200")
    mine = auto_resume_helper(saved, is_master=True, broadcast_object=ranks.master)
    save_checkpoint(saved, 300, **payload(300))  # what another rank finds by itself must not count
    other = auto_resume_helper(saved, is_master=False, broadcast_object=ranks.other)
    assert mine.step == other.step == 100 and mine.skipped == other.skipped


def test_all_ranks_raise_what_rank_0_found(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks()
    monkeypatch.setattr("linnaeus.checkpoint.format.FORMAT", FORMAT - 1)
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
    assert find_resume_point(str(saved), elsewhere).step == 250, "killed and started again, the run goes on"
    assert find_resume_point(str(saved / "step-00000100"), saved).step == 100, "going back within a run is what was asked"
    shutil.rmtree(elsewhere)
    with pytest.raises(ConfigError, match=r"run\.resume.*no checkpoint"):
        find_resume_point(str(tmp_path / "nowhere"), elsewhere)
    spoil(saved / "step-00000100")
    with pytest.raises(ConfigError, match=r"run\.resume.*damaged"):
        find_resume_point(str(saved / "step-00000100"), elsewhere)
