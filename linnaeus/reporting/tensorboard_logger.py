"""TensorBoard event files: the same rows under the same names, numbers only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linnaeus.reporting.console import LOGGER


class TensorBoardLogger:
    """Event files in `directory/tensorboard`, opened at the first row. What earlier starts wrote beyond the step where a run goes
    on is purged when it is displayed."""

    def __init__(self, directory: Path) -> None:
        self._directory = Path(directory) / "tensorboard"
        self._purge: int | None = None
        self._writer: Any = None
        self._failed = False

    def begin(self, global_step: int) -> None:
        """The run goes on from `global_step`."""
        self._purge = global_step + 1

    def log(self, global_step: int, row: Mapping[str, Any], *, stream: str = "metrics", position: int = 0) -> None:
        if self._writer is None and not self._failed:
            self._open()
        if self._writer is None:
            return
        try:
            for key, value in row.items():
                if isinstance(value, (int, float)) and key != "global_step":
                    self._writer.add_scalar(key, value, global_step)
        except OSError as error:
            self._give_up(error)

    def _open(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._directory), purge_step=self._purge, flush_secs=30)
        except (ImportError, OSError) as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Its thread ends with the first error of the disk: until the next start only metrics.jsonl has the rows."""
        self._failed, self._writer = True, None
        LOGGER.warning(f"logger.tensorboard: no event files from here on, training continues ({error})")

    def sync(self) -> None:
        try:
            if self._writer is not None:
                self._writer.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        try:
            if self._writer is not None:
                self._writer.close()
        except OSError as error:
            self._give_up(error)
        self._writer = None
