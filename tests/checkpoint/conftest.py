"""Small checkpoints to damage, kill and keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from linnaeus import files
from linnaeus.checkpoint import save_checkpoint


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many tries of a disk that cannot read, at once."""
    monkeypatch.setattr(files, "PAUSES", tuple(0.0 for _ in files.PAUSES))


def payload(step: int, **state: Any) -> dict[str, Any]:
    """The arguments of a save; every value tells its step."""
    weight = torch.full((4, 3), float(step))
    return {
        "model_state": {"head.weight": weight, "steps": torch.tensor(step)},
        "ema_state": {"head.weight": weight / 2, "steps": torch.tensor(step)},
        "training_state": {"optimizer": {0: {"exp_avg": weight + 1, "step": step}}, "accumulators": [weight.double()]},
        "state": {"global_step": step, "nested": {"best": float("inf"), "list": [1, 2.5, None, "x"]}, **state},
    }


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """`tmp_path/checkpoints` with steps 100 and 200."""
    directory = tmp_path / "checkpoints"
    for step in (100, 200):
        save_checkpoint(directory, step, **payload(step))
    return directory
