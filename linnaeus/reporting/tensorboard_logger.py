"""TensorBoard event files: the same rows under the same names, numbers only."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from linnaeus.reporting.console import LOGGER
from linnaeus.reporting.rows import Row


class TensorBoardLogger:
    """Event files in `directory/tensorboard`, opened at the first row. TensorBoard does not show rows that earlier launches wrote after the
    step from which the run continues."""

    def __init__(self, directory: Path) -> None:
        self._directory = Path(directory) / "tensorboard"
        self._purge_step: int | None = None
        self._writer: Any = None
        self._failed = False

    def start(self, global_step: int, earlier: Iterable[Row] = ()) -> None:
        """Continue from `global_step`. The event files of earlier launches have the rows before."""
        self._purge_step = global_step + 1

    def log(self, global_step: int, row: Mapping[str, Any], *, stream: str = "metrics", position: int = 0) -> None:
        with self._disabled_by_errors():
            if self._writer is None and not self._failed:
                from torch.utils.tensorboard import SummaryWriter

                self._writer = SummaryWriter(str(self._directory), purge_step=self._purge_step, flush_secs=30)
            for key, value in row.items():
                if self._writer is not None and isinstance(value, (int, float)) and key != "global_step":
                    self._writer.add_scalar(key, value, global_step)

    @contextmanager
    def _disabled_by_errors(self) -> Iterator[None]:
        """Stop logging until the next launch if the block fails: the writer's thread ends with its first disk error."""
        try:
            yield
        except (ImportError, OSError, UnicodeEncodeError) as error:  # the last: a path that is not UTF-8
            self._failed, self._writer = True, None
            LOGGER.warning(f"logger.tensorboard: no more event files are written, training continues ({error})")

    def sync(self) -> None:
        with self._disabled_by_errors():
            if self._writer is not None:
                self._writer.flush()

    def close(self) -> None:
        with self._disabled_by_errors():
            if self._writer is not None:
                self._writer.close()
        self._writer = None
