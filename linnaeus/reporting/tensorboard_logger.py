"""Write the rows of metrics.jsonl and timings.jsonl to TensorBoard event files under the same names; values that are not numbers are left
out."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from linnaeus.reporting.console import LOGGER
from linnaeus.reporting.rows import Row


class TensorBoardLogger:
    """Writer of event files in `directory/tensorboard`, which are created at the first row. TensorBoard hides the rows that earlier
    launches wrote after the step from which the run continues."""

    def __init__(self, directory: Path) -> None:
        self._directory = Path(directory) / "tensorboard"
        self._purge_step: int | None = None
        self._writer: Any = None
        self._failed = False

    def start(self, global_step: int, earlier: Iterable[Row] = ()) -> None:
        """Set the step from which the run continues. The rows `earlier` are not written, since the event files of earlier launches contain
        them."""
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
        """Run the `with` block. If it fails, log a warning and stop logging until the next launch: the writer's thread ends with its first
        disk error."""
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
