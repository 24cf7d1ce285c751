"""Write small checkpoints, and make system calls fail."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from linnaeus.checkpoint import save_checkpoint
from linnaeus.files import reading


@pytest.fixture(autouse=True)
def _no_retry_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry failed reads the same number of times, without delays."""
    monkeypatch.setattr(reading, "RETRY_DELAYS", tuple(0.0 for _ in reading.RETRY_DELAYS))


def payload(step: int, **state: Any) -> dict[str, Any]:
    """Return the arguments of a save. Every value depends on the step."""
    weight = torch.full((4, 3), float(step))
    return {
        "model_state": {"head.weight": weight, "steps": torch.tensor(step)},
        "ema_state": {"head.weight": weight / 2, "steps": torch.tensor(step)},
        "training_state": {"optimizer": {0: {"exp_avg": weight + 1, "step": step}}, "accumulators": [weight.double()]},
        "state": {"global_step": step, "nested": {"best": 0.5, "list": [1, 2.5, None, "x"]}, **state},
    }


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Return `tmp_path/checkpoints` with checkpoints of steps 100 and 200."""
    directory = tmp_path / "checkpoints"
    for step in (100, 200):
        save_checkpoint(directory, step, **payload(step))
    return directory


def fail_for(patch: pytest.MonkeyPatch, owner: Any, name: str, part: str, code: int) -> None:
    """Make `owner.name` raise an `OSError` if its first argument is a path that contains `part`."""
    real: Callable[..., Any] = getattr(owner, name)

    def failing(path: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(path, int) and part in str(path):
            raise OSError(code, os.strerror(code), str(path))
        return real(path, *args, **kwargs)

    patch.setattr(owner, name, failing)
