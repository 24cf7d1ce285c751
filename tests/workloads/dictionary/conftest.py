"""One trained model of each workload, whose activations the tests of this folder read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import runs

READ = {
    "biota": ["data.validation_batch=2"],
    "language": ["data.block=16"],
    "loadout": ["model.size=published_cli", "model.layers=1", "model.heads=2"],
}


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> dict[str, Path]:
    """Return {workload: directory of a run of one update}."""
    root = tmp_path_factory.mktemp("trained")
    return {name: runs.run(name, root / name, "trainer.length=1steps", *settings) for name, settings in READ.items()}
