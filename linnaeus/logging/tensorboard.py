"""TensorBoard event files: the same rows under the same names, numbers only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linnaeus.logging.console import LOGGER


class TensorBoardLogger:
    """Event files in `directory/tensorboard`. `resumed_step`: what earlier starts wrote beyond it is purged when displayed."""

    def __init__(self, directory: Path, resumed_step: int | None = None) -> None:
        self._writer: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            LOGGER.warning(f"logger.tensorboard: no event files, training continues ({error})")
            return
        purge = None if resumed_step is None else resumed_step + 1
        self._writer = SummaryWriter(str(Path(directory) / "tensorboard"), purge_step=purge, flush_secs=30)

    def log(self, global_step: int, row: Mapping[str, Any], *, stream: str = "metrics", position: int = 0) -> None:
        if self._writer is None:
            return
        for key, value in row.items():
            if isinstance(value, (int, float)) and key != "global_step":
                self._writer.add_scalar(key, value, global_step)

    def sync(self) -> None:
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
