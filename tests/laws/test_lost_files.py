"""Files of a run that are lost or damaged between two starts: they are made again from a checkpoint, or the start is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from linnaeus.errors import ConfigError, RunFailed
from linnaeus.train import loop
from tests import runs

SETTINGS = ["schedule.checkpoint=[3steps]", "trainer.length=3epochs", "schedule.report=[1steps]", "debug.batch_hashes=true"]


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> Path:
    """A run that was killed after the checkpoint of its sixth update."""
    root = tmp_path_factory.mktemp("killed")
    with runs.killed(loop, "train_one_step", 8):
        runs.start(runs.configuration("vectors", root, *SETTINGS))
    return root


def content(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("lost", [("config.yaml",), ("run.json",), ("config.yaml", "run.json", "launches", "summary.json"), ("launches",)])
def test_the_checkpoint_replaces_lost_files(killed, whole, tmp_path, lost):
    root = shutil.copytree(killed, tmp_path / "root")
    config = runs.configuration("vectors", root, *SETTINGS)
    path = runs.run_path(config)
    created = json.loads((path / "run.json").read_text())["created"]
    for name in lost:
        shutil.rmtree(path / name) if (path / name).is_dir() else (path / name).unlink(missing_ok=True)
    before = content(root)
    with pytest.raises(ConfigError, match=r"another configuration .*seed: 0 -> 7"):
        runs.start(runs.configuration("vectors", root, *SETTINGS, "seed=7"))
    assert content(root) == before
    assert runs.start(config) == 0
    assert runs.differences(path, whole) == [] and (path / "config.yaml").exists()
    record = json.loads((path / "run.json").read_text())
    assert (record["created"], record["run_id"]) == (created, runs.newest(path).state["run_id"])


def test_results_without_a_configuration_are_refused(killed, tmp_path):
    root = shutil.copytree(killed, tmp_path / "root")
    config = runs.configuration("vectors", root, *SETTINGS)
    for name in ("launches", "checkpoints"):
        shutil.rmtree(runs.run_path(config) / name)
    (runs.run_path(config) / "config.yaml").unlink()
    before = content(root)
    with pytest.raises(ConfigError, match=r"config\.yaml is missing, and neither"):
        runs.start(config)
    assert content(root) == before


@pytest.mark.parametrize("lost", ["summary.json", "config.yaml", "run.json"])
@pytest.mark.parametrize("empty", [False, True])
def test_a_finished_run_makes_lost_files_again(whole, tmp_path, lost, empty):
    root = shutil.copytree(whole.parents[1], tmp_path / "root")
    config = runs.configuration("vectors", root, *SETTINGS)
    path = runs.run_path(config)
    path.joinpath(lost).write_text("") if empty else path.joinpath(lost).unlink()
    assert runs.start(config) == 0
    assert runs.differences(path, whole) == [] and (path / lost).stat().st_size > 0
    assert runs.summary(path)["total_steps"] == runs.summary(whole)["total_steps"]


def flip(text: bytes) -> bytes:
    """Return the rows with another type of value in the second: not a row any more."""
    lines = text.splitlines(keepends=True)
    return b"".join([lines[0], lines[1].replace(b'"global_step"', b'"global_st\xff\xfe'), *lines[2:]])


def join(text: bytes) -> bytes:
    """Return the rows with the beginning of the first and the end of the second as one line."""
    first, second, *rest = text.splitlines(keepends=True)
    return b"".join([first[:10], second[len(second) // 2 :], *rest])


def split(text: bytes) -> bytes:
    """Return the rows with binary garbage between them: more lines than rows."""
    first, *rest = text.splitlines(keepends=True)
    return b"".join([first, b"\x00\n\xff\xff\n[1]\n\n", *rest])


@pytest.mark.parametrize(("damage", "lost"), [(flip, {1}), (join, {0, 1}), (split, set())])
def test_a_damaged_line_of_rows_is_removed_and_named(killed, whole, tmp_path, damage, lost):
    root = shutil.copytree(killed, tmp_path / "root")
    config = runs.configuration("vectors", root, *SETTINGS)
    path = runs.run_path(config)
    names = ("metrics.jsonl", "reports.jsonl", "batches-rank0.jsonl")
    for name in (*names, "timings.jsonl"):
        (path / name).write_bytes(damage((path / name).read_bytes()))
    assert runs.start(config) == 0
    log = (path / "train.log").read_text()
    for name in names:
        assert runs.rows(path / name) == [row for number, row in enumerate(runs.rows(whole / name)) if number not in lost]
        assert f"{name}: " in log
    assert len(runs.rows(path / "timings.jsonl")) > 2
    assert runs.unequal(runs.newest(path).training_state, runs.newest(whole).training_state) == []
    assert runs.start(config) == 0


def test_a_run_directory_moved_away_ends_in_one_line(tmp_path, monkeypatch):
    config = runs.configuration("vectors", tmp_path, *SETTINGS)
    path, step = runs.run_path(config), loop.train_one_step

    def moving(t, window):
        step(t, window)
        if t.progress.global_step == 2:
            path.rename(tmp_path / "moved")

    monkeypatch.setattr(loop, "train_one_step", moving)
    with pytest.raises(RunFailed, match="could not be saved"):
        runs.start(config)
    (tmp_path / "moved").rename(path)
    monkeypatch.undo()
    assert runs.start(config) == 0
