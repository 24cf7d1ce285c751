"""Read and write the specification of a launch (JSON in an environment variable) and its records (lines of JSON, flushed to the disk)."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.fork_server import FAULTS, MARK

ANY = -2  # a fault's `step`: the index counts over the whole launch


@dataclass(frozen=True)
class Fault:
    """A kill in process rank `rank` at the `index`-th time (from 1) it passes `place` at `step`.

    `step` is the `global_step` of the run, or of the checkpoint that is being written; -1: before the run has one.
    `kind`: tree (every process of the launch), rank (that process alone), agent (its launcher's agent alone). `hold`: before it,
    a thread of this process is held up at this place and step, and the kill waits until it is."""

    place: str
    step: int
    index: int
    rank: int
    kind: str
    hold: tuple[str, int] | None = None


@dataclass(frozen=True)
class Spec:
    """Specification of one launch. `trace`: folder for the hits of every place; `broken`: a name of `breaks.py`."""

    mark: str
    record: str
    fault: Fault | None = None
    trace: str | None = None
    broken: str | None = None

    def environment(self) -> dict[str, str]:
        return {FAULTS: json.dumps(asdict(self)), MARK: self.mark}

    @classmethod
    def read(cls) -> Spec | None:
        text = os.environ.get(FAULTS)
        if text is None:
            return None
        values = json.loads(text)
        fault = values.pop("fault")
        if fault is not None and fault["hold"] is not None:
            fault["hold"] = tuple(fault["hold"])
        return cls(fault=Fault(**fault) if fault is not None else None, **values)


def append(path: str | Path, row: dict[str, Any], flush: bool = True) -> None:
    """Append a line to a file, and flush it to the disk if `flush`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, (json.dumps(row) + "\n").encode())
        if flush:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    path = Path(path)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def processes(mark: str) -> list[int]:
    """Return the live processes of a launch: all that inherited its mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes() and path.with_name("stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                found.append(int(path.parent.name))
        except OSError:
            continue  # gone meanwhile
    return found


def signal_to(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
