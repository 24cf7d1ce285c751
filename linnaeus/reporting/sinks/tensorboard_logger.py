"""Write the rows of metrics.jsonl and timings.jsonl to TensorBoard event files under the same names; values that are not numbers are left
out."""

import math
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from linnaeus.files import remove_directory
from linnaeus.reporting.sinks.log_sinks import Row
from linnaeus.reporting.sinks.saved_rows import SavedRows, open_run
from linnaeus.reporting.sinks.soft_failure import SoftFailure

FOLDER = "tensorboard"


class TensorBoardLogger:
    """Writer of event files in `directory/tensorboard`, which are created at the first row. TensorBoard hides the rows that earlier
    launches wrote after the step from which the run continues."""

    def __init__(self, directory: Path) -> None:
        self._run, self._directory = Path(directory), Path(directory) / FOLDER
        self._purge_step: int | None = None
        self._writer: Any = None
        self._soft = SoftFailure("logger.tensorboard", "no more event files are written")  # the writer's thread ends with its first error

    def start(self, global_step: int, earlier: Iterable[Row] = ()) -> None:
        """Set the step from which the run continues. Replace the event files by a file with all rows of the run so far, if they lack a row
        of `earlier`, because a launch did not write it, or have another one, such as that of a validation after the checkpoint of the same
        step: the run writes it again, and TensorBoard would show both."""
        self._purge_step = global_step + 1
        with self._soft.guard():
            rows = Counter(row["global_step"] for _, _, row in earlier)
            written = Counter({step: count for step, count in written_rows(self._directory).items() if step <= global_step})
            if rows and rows != written:
                replace_files(open_run(self._run))

    def log(self, global_step: int, row: Mapping[str, Any], *, stream: str = "metrics", position: int = 0) -> None:
        if self._soft.failed:
            return
        with self._soft.guard():
            if self._writer is None:
                self._writer = open_writer(self._directory, self._purge_step)
            add_row(self._writer, global_step, row)

    def sync(self) -> None:
        if not self._soft.failed and self._writer is not None:
            with self._soft.guard():
                self._writer.flush()

    def close(self, status: str = "running") -> None:
        """Close the event file. status: not used."""
        if not self._soft.failed and self._writer is not None:
            with self._soft.guard():
                self._writer.close()
        self._writer = None


def open_writer(directory: Path, purge_step: int | None = None) -> Any:
    """Return torch's `SummaryWriter` for `directory`. TensorBoard hides the rows of earlier event files from `purge_step` on; with None it
    hides no rows."""
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(directory), purge_step=purge_step, flush_secs=30)


def add_row(writer: Any, global_step: int, row: Mapping[str, Any], seconds: float | None = None) -> None:
    """Write the numbers of a row as scalars at `global_step`. Values that are not numbers are left out; None (null in a file) is written as
    NaN.

    seconds: time of the row in seconds since 1970; None: now."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    # One event for the row: `SummaryWriter.add_scalar` makes one for each scalar, which takes five times as long.
    numbers = {key: math.nan if value is None else value for key, value in row.items() if value is None or isinstance(value, (int, float))}
    values = [Summary.Value(tag=key, simple_value=value) for key, value in numbers.items() if key != "global_step"]
    writer.file_writer.add_summary(Summary(value=values), global_step, seconds)


def written_rows(directory: Path) -> Counter[int]:
    """Return {step: number of rows} of the event files in `directory`."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    files = sorted(map(str, directory.glob("*tfevents*")))
    return Counter(event.step for file in files for event in LegacyEventFileLoader(file).Load() if event.HasField("summary"))


def replace_files(run: SavedRows) -> None:
    """Replace the event files of `run` by one with all its rows. Each row has the time at which it was logged (`SavedRows.timed`)."""
    final = run.path / FOLDER
    temporary = Path(tempfile.mkdtemp(prefix=".tensorboard-", dir=run.path))
    try:
        temporary.chmod(0o755)  # mkdtemp lets only its owner read
        writer = open_writer(temporary)
        for (_, _, row), seconds in run.timed():
            add_row(writer, row["global_step"], row, seconds)
        writer.close()
        if final.exists():
            remove_directory(final)
        temporary.rename(final)
    finally:
        if temporary.exists():
            remove_directory(temporary)
