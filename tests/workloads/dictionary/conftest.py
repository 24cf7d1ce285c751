"""One trained model of each workload, whose activations the tests of this folder read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests import runs

# The validation batch is that of `runs.TINY`, which the dictionary run has, so that sums of losses are equal to the bit.
READ = {
    "biota": ["data.validation_batch=2"],
    "language": ["data.block=16"],
    "loadout": ["model.size=published_cli", "model.layers=1", "model.heads=2", "data.validation_batch=2"],
}


class Trained(Mapping[str, Path]):
    """{workload: directory of a run of one update}, made at the first use."""

    def __init__(self, root: Path) -> None:
        self.root, self.made = root, dict[str, Path]()

    def __getitem__(self, name: str) -> Path:
        if name not in self.made:
            self.made[name] = runs.run(name, self.root / name, "trainer.length=1steps", *READ[name])
        return self.made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(READ)

    def __len__(self) -> int:
        return len(READ)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("trained"))
