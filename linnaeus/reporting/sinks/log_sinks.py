"""Write the rows of metrics of a run to its files and to other destinations, such as W&B."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from linnaeus.errors import counted
from linnaeus.reporting.jsonl.row_writer import RowWriter
from linnaeus.reporting.jsonl.rows import merge_rows, read_rows

Row = tuple[str, int, dict[str, Any]]  # (stream, position, row)


class Sink(Protocol):
    """Destination of metric rows besides the files, such as W&B.

    `start` is called before the first row. The run continues after `global_step`; later rows of earlier launches will be logged again.
    `earlier` has the rows up to `global_step`, in the order of their steps.

    `position` is the number of a row in its `stream` (metrics or timings), from 1. A resumed run repeats the positions after its
    checkpoint, so the sink can recognise a row that it has already sent.

    `close` is called at the end of the launch with its status, one of `results.STATUSES`, which a sink shows if it can. The file
    summary.json may not contain this status yet."""

    def start(self, global_step: int, earlier: Iterable[Row]) -> None: ...

    def log(self, global_step: int, row: Mapping[str, Any], *, stream: str, position: int) -> None: ...

    def sync(self) -> None: ...

    def close(self, status: str = "running") -> None: ...


class LogSinks:
    """Writer of all metric rows of a run: to metrics.jsonl and timings.jsonl in `directory`, and to the destinations `sinks`. A row of
    metrics contains only values that the configuration determines; a row of timings contains times, throughput and memory. With `directory`
    None (ranks other than 0) every method does nothing."""

    def __init__(self, directory: Path | None, sinks: Sequence[Sink] = ()) -> None:
        self.sinks = list(sinks)
        self.files = {} if directory is None else {name: RowWriter(directory / f"{name}.jsonl") for name in ("metrics", "timings")}
        self._all: list[Any] = [*self.files.values(), *self.sinks]

    def log(self, global_step: int, row: Mapping[str, Any], stream: str = "metrics") -> None:
        """Write a row to the file of `stream` (metrics or timings) and to all sinks."""
        file = self.files.get(stream)
        if file is None:
            return
        file.log(global_step, row)
        for sink in self.sinks:
            sink.log(global_step, row, stream=stream, position=file.rows + file.lost)

    def resume(self, state: Mapping[str, int], global_step: int) -> list[str]:
        """Cut metrics.jsonl back to the rows at the checkpoint of `global_step`, remove later rows from timings.jsonl, and start the sinks.
        Return a list with one warning if rows are missing, or if rows were removed because there is no checkpoint; otherwise []. state:
        result of `state_dict` in the checkpoint; {} (no checkpoint) removes all rows."""
        if not self.files:
            return []
        discarded = self.files["metrics"].truncate(global_step, **(state or {"rows": 0}))
        self.files["timings"].truncate_after(global_step if state else -1)
        for sink in self.sinks:
            sink.start(global_step, self._rows())
        if not state and discarded:
            return [
                f"there is no checkpoint to continue from: the run starts again; removed from metrics.jsonl: {counted(discarded, 'row')}"
            ]
        return [f"metrics.jsonl lacks {counted(-discarded, 'row')} that the checkpoint counted"] if discarded < 0 else []

    def _rows(self) -> Iterator[Row]:
        """Yield (stream, position, row) for the rows of both files, in the order of their steps."""
        files = self.files.items()
        yield from merge_rows({name: read_rows(file.path) for name, file in files}, {name: file.lost for name, file in files})

    def state_dict(self) -> dict[str, int]:
        """Return the row counts of metrics.jsonl to save in a checkpoint; {"rows": 0} on ranks other than 0."""
        return self.files["metrics"].counters() if self.files else {"rows": 0}

    def sync(self) -> None:
        """Wait until all rows are on the disk and the sinks have sent all rows. Called before a checkpoint is committed."""
        for each in self._all:
            each.sync()

    def close(self, status: str = "running") -> None:
        """Close the files and the sinks. status: status of the run, as in summary.json."""
        for file in self.files.values():
            file.close()
        for sink in self.sinks:
            sink.close(status)
