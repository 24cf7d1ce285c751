"""Files of a run that are lost or damaged between two starts: they are made again from a checkpoint, or the start is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from linnaeus.errors import ConfigError
from linnaeus.train import loop
from tests import runs

SETTINGS = ["schedule.checkpoint=[3steps]", "trainer.length=3epochs"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run that was never stopped."""
    return runs.run("vectors", tmp_path_factory.mktemp("whole"), *SETTINGS)


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
