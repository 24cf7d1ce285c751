"""A dictionary on the tiny run of each workload, trained once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import runs

MODULES = {"biota": "trunk.stem", "language": "blocks.1", "loadout": "layers.0"}  # [B, C, H, W]; [B, T, d]; [B, T, d] with padding
READING = ["workload=dictionary", "model.features=24", "model.k=4", "model.block=4", "optimizer.lr=0.01", "trainer.length=20steps"]
READING += ["data.samples=40", "data.validation_batch=64", "dictionary.report_features=12", "data.source_batch=4", "data.window=32"]
READING += ["logger.report=true", "schedule.validate=[100%]"]


def train_dictionary(root: Path, read: Path, module: str, *more: str, name: str = "run") -> Path:
    """Return the directory of a run of dictionaries of a module of the run `read`."""
    texts = [*runs.TINY, *READING, f"dictionary.run={read}", f"dictionary.module={module}", *more, f"run.root={root}", f"run.name={name}"]
    merged = {text.split("=", 1)[0]: text for text in texts}
    return runs.resumed(runs.composed(sorted(merged.values(), key=lambda text: "." in text.split("=", 1)[0])))


@pytest.fixture(scope="session")
def read_by(trained: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from a workload to the directory of a run of a dictionary of its model."""
    found: dict[str, Path] = {}

    def run_of(workload: str) -> Path:
        if workload not in found:
            found[workload] = train_dictionary(tmp_path_factory.mktemp(workload), trained[workload], MODULES[workload])
        return found[workload]

    return run_of
