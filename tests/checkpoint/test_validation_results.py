"""Results of validation passes: damaged ones are ignored, other files are not touched, errors of the disk are logged."""

import errno
import json
import math
import shutil
from pathlib import Path

import pytest

from linnaeus.checkpoint import load_checkpoint, save_checkpoint
from linnaeus.rundir.validation_results import ValidationResults
from tests.checkpoint.conftest import fail_for


@pytest.fixture
def results(tmp_path: Path) -> ValidationResults:
    """Return results with one pass at steps 100, 200 and 300."""
    (tmp_path / "validation").mkdir()
    found = ValidationResults(tmp_path / "validation")
    for step in (100, 200, 300):
        found.write(step, "val", {"val/loss": float(step)}, "hash")
    return found


@pytest.mark.parametrize("damage", [b"", b'{"weights": "hash", "metr', b"null", b"[]", b"\xff", b'{"weights": "hash"}', b"[" * 100_000])
def test_a_damaged_result_is_ignored(results: ValidationResults, damage: bytes) -> None:
    assert results.read(200, "val", "hash") == {"val/loss": 200.0} and results.read(200, "val", "other") is None
    results.path(200, "val").write_bytes(damage)
    assert results.read(200, "val", "hash") is None
    results.write(200, "val", {"val/loss": 2.0}, "hash")
    assert results.read(200, "val", "hash") == {"val/loss": 2.0}


def test_a_result_with_another_byte_is_ignored(results: ValidationResults, caplog: pytest.LogCaptureFixture) -> None:
    path = results.path(200, "val")
    text = path.read_bytes()
    for place, byte in enumerate(text):
        path.write_bytes(text[:place] + bytes([byte ^ 1]) + text[place + 1 :])
        read = results.read(200, "val", "hash")
        assert read is None or (read == {"val/loss": 200.0} and not chr(byte).isalnum()), (place, chr(byte))
    assert "is damaged; its pass is run again" in caplog.text


def test_values_that_json_does_not_have(results: ValidationResults) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    metrics = {"val/a": math.nan, "val/b": math.inf, "val/c": -math.inf, "val/d": 1.5, "val/e": 1e300}
    results.write(300, "val", metrics, "hash")
    content = json.loads(results.path(300, "val").read_text(), parse_constant=refuse)
    assert content["metrics"]["val/a"] is None
    assert repr(results.read(300, "val", "hash")) == repr(metrics)
    state = {"best": {"val/loss": {"value": math.inf}}, "score": math.nan}
    path = save_checkpoint(results.directory, 7, model_state={}, training_state={}, state=state)
    for name in ("state.json", "manifest.json"):
        json.loads((path / name).read_text(), parse_constant=refuse)
    assert load_checkpoint(path).state["score"] is None


def test_an_unreadable_result_is_logged_and_an_absent_one_is_not(results: ValidationResults, caplog: pytest.LogCaptureFixture) -> None:
    assert results.read(400, "val", "hash") is None and not caplog.records
    results.path(200, "val").unlink()
    results.path(200, "val").mkdir()
    assert results.read(200, "val", "hash") is None
    assert "its pass is run again" in caplog.text


def test_directories_with_other_names_are_not_touched(results: ValidationResults) -> None:
    others = ["step-old", "step-", "step-1e9", "step-00000300.bak", "notes"]
    for name in others:
        (results.directory / name).mkdir()
    (results.directory / ".tmp-step-00000300-77-deleted").mkdir()  # left by a kill during the deletion
    results.discard_after(150)
    assert sorted(path.name for path in results.directory.iterdir()) == sorted([*others, "step-00000100"])


def test_a_result_that_cannot_be_deleted_is_logged(
    results: ValidationResults, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        fail_for(patch, shutil, "rmtree", "step-", errno.EBUSY)
        results.discard_after(150)
    assert caplog.text.count("could not be deleted") == 2 and results.read(100, "val", "hash") is not None
    results.discard_after(150)
    assert [path.name for path in results.directory.iterdir()] == ["step-00000100"]
