"""Format and read the rows of metrics.jsonl, reports.jsonl and timings.jsonl: one row of metrics per line, as JSON.

Format: a row starts with `global_step`; its other keys are in alphabetical order. A float has the fewest digits that restore its exact
value. NaN (an undefined metric) is written as null, an infinity as 1e999, which JSON readers parse as infinity. Equal runs write equal
bytes, so `cmp` can compare their metrics.jsonl. All functions that read rows skip damaged lines.
"""

import heapq
import itertools
import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from linnaeus.errors import counted
from linnaeus.files import json_object

log = logging.getLogger("linnaeus")

PLAIN = {int, float, str, bool, type(None)}


def format_row(global_step: int, row: Mapping[str, Any]) -> str:
    """Return a row as one line of JSON without its newline. Values are numbers, strings, booleans, None or lists of strings. Raise
    `AssertionError` for a tensor: reading it would wait for the device."""
    items = {"global_step": global_step} | {key: row[key] for key in sorted(row) if key != "global_step"}
    if all(type(value) in PLAIN and (type(value) is not float or math.isfinite(value)) for value in items.values()):
        return json.dumps(items)  # the same text as below in half the time
    return "{" + ", ".join(f"{json.dumps(key)}: {_value(key, value)}" for key, value in items.items()) + "}"


def _value(key: str, value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "null" if math.isnan(value) else ("1e999" if value > 0 else "-1e999")
    strings = isinstance(value, list) and all(isinstance(item, str) for item in value)
    assert strings or value is None or isinstance(value, (bool, int, float, str)), f"{key} is a {type(value).__name__}, not a plain value"
    return float.__repr__(value) if isinstance(value, float) else json.dumps(value)


def whole_lines(path: Path, limit: int | None = None) -> tuple[int, int]:
    """Return (number of complete lines, byte offset of their end), counting at most `limit` lines; (0, 0) if the file does not exist."""
    lines = end = 0
    if path.exists():
        with open(path, "rb") as file:
            for line in file:
                if lines == limit or not line.endswith(b"\n"):
                    break
                lines, end = lines + 1, end + len(line)
    return lines, end


def complete_lines(path: Path) -> Iterator[bytes]:
    """Yield the complete lines of a file, none if it does not exist."""
    if path.exists():
        with open(path, "rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))


def parse_row(line: bytes) -> dict[str, Any] | None:
    """Return the row in a line of JSON; None if the line is damaged."""
    row = json_object(line)
    return row if row is not None and type(row.get("global_step")) is int else None


def read_rows(path: Path | str) -> list[dict[str, Any]]:
    """Return the rows of a file; [] if it does not exist. Leave out an incomplete last line, and log which lines are damaged."""
    return [row for _, row in numbered_rows(path)]


def numbered_rows(path: Path | str) -> list[tuple[int, dict[str, Any]]]:
    """Return (number of the line, row) for the rows of a file, as `read_rows` does."""
    rows = [parse_row(line) for line in complete_lines(Path(path))]
    damaged = [number for number, row in enumerate(rows, 1) if row is None]
    if damaged:
        log.warning("%s: %s are left out", path, name_lines(damaged))
    return [(number, row) for number, row in enumerate(rows, 1) if row is not None]


def merge_rows(
    streams: Mapping[str, list[dict[str, Any]]], lost: Mapping[str, int] | None = None
) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield (stream, position, row) of the rows of all streams, in the order of their steps. streams: name of the stream -> rows. The first
    position of a stream is 1 + `lost[stream]`, the number of rows that were logged but are no longer in the file."""
    first = lost or {}
    numbered = [[(name, number, row) for number, row in enumerate(rows, 1 + first.get(name, 0))] for name, rows in streams.items()]
    yield from heapq.merge(*numbered, key=lambda found: found[2]["global_step"])


def are_rows_until(path: Path, rows: int, global_step: int) -> bool:
    """Return True if each of the first `rows` lines of the file is an intact row of a step up to `global_step`.

    If the file has fewer complete lines, only these are checked."""
    first = (parse_row(line) for line in itertools.islice(complete_lines(path), rows))
    return all(row is not None and row["global_step"] <= global_step for row in first)


def name_lines(numbers: Sequence[int]) -> str:
    """Return a text with the number of damaged lines and the first five line numbers. numbers: line numbers of all damaged lines."""
    return f"{counted(len(numbers), 'damaged line')} ({', '.join(map(str, numbers[:5]))}{', ...' if len(numbers) > 5 else ''})"
