"""One call per row: files first, then whoever else wants them, all under the same names.

A row of metrics holds only what the configuration determines; a row of timings holds clocks, throughput and memory. Each row has a
position in its stream (how many rows came before it), which a resumed run counts again from its checkpoint: that is how a
remote logger knows that it has had a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from linnaeus.reporting.rows import RowWriter


class Sink(Protocol):
    """Something rows go to besides the files. `begin` comes before the first row: rows beyond `global_step` will be replayed."""

    def begin(self, global_step: int) -> None: ...

    def log(self, global_step: int, row: Mapping[str, Any], *, stream: str, position: int) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


class LogSinks:
    """metrics.jsonl and timings.jsonl of a run directory, and further sinks. `directory` None (ranks other than 0): all no-ops."""

    def __init__(self, directory: Path | None, sinks: Sequence[Sink] = ()) -> None:
        self.sinks = list(sinks)
        self.files = {} if directory is None else {name: RowWriter(directory / f"{name}.jsonl") for name in ("metrics", "timings")}

    def log(self, global_step: int, row: Mapping[str, Any]) -> None:
        """A row of metrics."""
        self._log("metrics", global_step, row)

    def log_timings(self, global_step: int, row: Mapping[str, Any]) -> None:
        """A row of clocks."""
        self._log("timings", global_step, row)

    def _log(self, stream: str, global_step: int, row: Mapping[str, Any]) -> None:
        file = self.files.get(stream)
        if file is None:
            return
        file.log(global_step, row)
        for sink in self.sinks:
            sink.log(global_step, row, stream=stream, position=file.rows)

    def resume(self, state: Mapping[str, int], global_step: int) -> list[str]:
        """Cut both files back to a checkpoint: metrics to the rows it counted, timings to its step; returns lines that say what
        was found missing. `state` is that of `state_dict`; the empty one starts anew."""
        if not self.files:
            return []
        for sink in self.sinks:
            sink.begin(global_step)
        discarded = self.files["metrics"].truncate(state.get("rows", 0))
        self.files["timings"].truncate_after(global_step if state else -1)
        return [f"metrics.jsonl lacks {-discarded} rows that the checkpoint counted"] if discarded < 0 else []

    def state_dict(self) -> dict[str, int]:
        """Rows of metrics so far, for the checkpoint's state."""
        return {"rows": self.files["metrics"].rows} if self.files else {"rows": 0}

    def sync(self) -> None:
        """On the disk, before a checkpoint is committed."""
        for file in self.files.values():
            file.sync()
        for sink in self.sinks:
            sink.sync()

    def close(self) -> None:
        for file in self.files.values():
            file.close()
        for sink in self.sinks:
            sink.close()
