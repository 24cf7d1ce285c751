"""The destinations of rows: metrics.jsonl and timings.jsonl first, then W&B and TensorBoard, all under the same names.

A row of metrics contains only what the configuration determines; a row of timings contains times, throughput and memory. Each row has a
position, its 1-based number in its stream. A resumed run repeats the positions after its checkpoint, from which a remote logger
recognises a row that it has already sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from linnaeus.reporting.rows import RowWriter


class Sink(Protocol):
    """A destination besides the files. `start` is called before the first row; rows after `global_step` are logged again."""

    def start(self, global_step: int) -> None: ...

    def log(self, global_step: int, row: Mapping[str, Any], *, stream: str, position: int) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


class LogSinks:
    """metrics.jsonl and timings.jsonl of a run directory, and further sinks. With `directory` None (ranks other than 0) every method does
    nothing."""

    def __init__(self, directory: Path | None, sinks: Sequence[Sink] = ()) -> None:
        self.sinks = list(sinks)
        self.files = {} if directory is None else {name: RowWriter(directory / f"{name}.jsonl") for name in ("metrics", "timings")}

    def log(self, global_step: int, row: Mapping[str, Any]) -> None:
        """Write a row of metrics."""
        self._log("metrics", global_step, row)

    def log_timings(self, global_step: int, row: Mapping[str, Any]) -> None:
        """Write a row of timings."""
        self._log("timings", global_step, row)

    def _log(self, stream: str, global_step: int, row: Mapping[str, Any]) -> None:
        file = self.files.get(stream)
        if file is None:
            return
        file.log(global_step, row)
        for sink in self.sinks:
            sink.log(global_step, row, stream=stream, position=file.rows)

    def resume(self, state: Mapping[str, int], global_step: int) -> list[str]:
        """Cut metrics.jsonl back to the rows that the checkpoint counted and timings.jsonl to its step. Return a warning if rows are
        missing. `state` is that of `state_dict`; an empty one removes all rows."""
        if not self.files:
            return []
        for sink in self.sinks:
            sink.start(global_step)
        discarded = self.files["metrics"].truncate(state.get("rows", 0))
        self.files["timings"].truncate_after(global_step if state else -1)
        return [f"metrics.jsonl lacks {-discarded} rows that the checkpoint counted"] if discarded < 0 else []

    def state_dict(self) -> dict[str, int]:
        """Return the number of rows of metrics so far."""
        return {"rows": self.files["metrics"].rows} if self.files else {"rows": 0}

    def sync(self) -> None:
        """Wait until all rows are on the disk; called before a checkpoint is committed."""
        for file in self.files.values():
            file.sync()
        for sink in self.sinks:
            sink.sync()

    def close(self) -> None:
        for file in self.files.values():
            file.close()
        for sink in self.sinks:
            sink.close()
