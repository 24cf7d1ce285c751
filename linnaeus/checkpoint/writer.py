"""Saving during a run: write a checkpoint, then let retention delete what it supersedes.

The loop says `save(...)` and, at its end, `wait()`; it does not know whether the bytes are written before `save` returns. Only
process rank 0 has a writer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linnaeus.checkpoint.format import save_checkpoint
from linnaeus.checkpoint.retention import prune, set_aside_beyond, tidy

if TYPE_CHECKING:
    from torch import Tensor


class CheckpointWriter:
    """Writes `directory/step-N/` and keeps the last `keep_last` and the best `keep_best` by `state["score"]`.

    Making one takes the directory over (crash leftovers go): hold the run's lock, and look for a resume point afterwards.
    """

    def __init__(self, directory: Path | str, keep_last: int, keep_best: int, best_mode: str = "max") -> None:
        self.directory = Path(directory)
        self.keep_last, self.keep_best, self.best_mode = keep_last, keep_best, best_mode
        self.directory.mkdir(parents=True, exist_ok=True)
        tidy(self.directory)

    def begin(self, step: int) -> list[str]:
        """Call once the run knows where it goes on (0: from the start), before the first save. What lies beyond is set aside;
        the names are returned."""
        return set_aside_beyond(self.directory, step)

    def save(
        self,
        step: int,
        *,
        model_state: Mapping[str, Tensor],
        training_state: dict[str, Any],
        state: dict[str, Any],
        ema_state: Mapping[str, Tensor] | None = None,
    ) -> Path:
        """See `save_checkpoint`. The caller may change the tensors as soon as this returns."""
        path = save_checkpoint(
            self.directory, step, model_state=model_state, ema_state=ema_state, training_state=training_state, state=state
        )
        prune(self.directory, step, self.keep_last, self.keep_best, self.best_mode)
        return path

    def wait(self) -> None:
        """Return once every checkpoint handed to `save` is committed; raises what went wrong in writing it."""
