"""A folder that cannot be written is one line with status 2, before anything is computed for it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from linnaeus.checkpoint import initial_weights
from linnaeus.commands import calibrate, evaluate, replay, report
from linnaeus.files import refuse_read_only
from linnaeus.train import evaluation


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run directory on a disk that refuses writing, also for root."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text("run: {experiment: biota}\nlogger: {}\nseed: 0\n")
    (folder / "run.json").write_text('{"run_id": "ab12cd34", "created": "2026-11-24T05:43:55+0000"}')
    (folder / "metrics.jsonl").write_text("")
    opened, access = os.open, os.access

    def refusing(path: Any, flags: int, *rest: Any, **keys: Any) -> int:
        if flags & os.O_CREAT and folder in Path(path).parents:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return opened(path, flags, *rest, **keys)

    monkeypatch.setattr(os, "open", refusing)
    monkeypatch.setattr(os, "access", lambda path, mode: not Path(path).is_relative_to(folder) and access(path, mode))
    return folder


def refused(command: Any, words: list[str], capsys: pytest.CaptureFixture) -> str:
    """Run a command, check that it ends with status 2 and one line, and return the line."""
    with pytest.raises(SystemExit) as ended:
        command.main(words)
    lines = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and len(lines) == 1, lines
    return lines[0]


def test_calibrate(run: Path, capsys: pytest.CaptureFixture) -> None:
    line = refused(calibrate, [str(run)], capsys)
    assert line == f"error: RUN: {run} cannot be written; copy the run to a folder that you may write to"


def test_evaluate(run: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initial_weights, "read_initial_weights", lambda *_: SimpleNamespace(source="step-00000001", notes=()))
    monkeypatch.setattr(evaluation, "_score_variant", lambda *_: pytest.fail("the passes were run"))
    assert refused(evaluate, [str(run)], capsys) == f"error: --output: {run} cannot be written; choose another folder"


def test_evaluate_on_a_manifest(run: Path, capsys: pytest.CaptureFixture) -> None:
    words = [str(run), "--manifest", "others.csv", "--output", str(run / "a" / "scores")]
    assert refused(evaluate, words, capsys) == f"error: --output: {run} cannot be written; choose another folder"


def test_replay(run: Path, capsys: pytest.CaptureFixture) -> None:
    line = refused(replay, [str(run), "--to", "csv"], capsys)
    assert line == f"error: RUN: {run} cannot be written (Read-only file system); copy the run to a folder that you may write to"


def test_a_folder_that_can_be_made_is_not_refused(tmp_path: Path) -> None:
    refuse_read_only(tmp_path / "a" / "b", "--output", "choose another folder")
    assert not (tmp_path / "a").exists()


def test_report(run: Path, capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    path, elsewhere = run / "report.html", tmp_path / "page.html"
    reason = os.strerror(errno.EROFS)
    assert refused(report, [str(run)], capsys) == f"error: {path} cannot be written ({reason}); choose another file with --output"
    assert report.main([str(run), "--output", str(elsewhere)]) == 0
    assert capsys.readouterr().out == f"{elsewhere}\n" and not path.exists()
    assert "<h1>" in elsewhere.read_text()
