"""Convert values to JSON, CSV and UTF-8 and back, and compute digests."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def to_utf8(text: str) -> bytes:
    r"""Return `text` encoded as UTF-8.

    Python represents bytes of a file name that are not UTF-8 as surrogates. Each surrogate is written as an escape such as `\udcff`, which
    a JSON reader turns back into the surrogate."""
    return text.encode(errors="backslashreplace")


def to_json(content: Any, indent: int | None = 2) -> str:
    """Return `content` as JSON text with a final newline. `indent=None` writes one line. NaN and infinities are replaced as in `finite`."""
    return json.dumps(finite(content), indent=indent, ensure_ascii=False, allow_nan=False) + "\n"


def with_distinct_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dictionary. Raise `ValueError` if a key occurs twice: `json.loads` alone would use the last value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


def to_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return `rows` as CSV text with a header line; "" if there are no rows. All rows have the same keys, which are the columns."""
    text, table = io.StringIO(), None
    for row in rows:
        if table is None:
            table = csv.DictWriter(text, list(row), lineterminator="\n")
            table.writeheader()
        table.writerow(row)
    return text.getvalue()


def finite(value: Any) -> Any:
    """Return a copy of nested containers for JSON: NaN becomes None, and infinities become the strings "Infinity" and "-Infinity"."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def from_finite(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a flat mapping in which the replacements by `finite` are undone: None becomes NaN, "Infinity" becomes infinite."""
    values = {None: math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
    return {name: values.get(value, value) if value is None or isinstance(value, str) else value for name, value in metrics.items()}


def json_object(content: bytes) -> dict[str, Any] | None:
    """Return the JSON object in the bytes `content` as a dict; None if `content` is not a JSON object."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def content_digest(content: Mapping[str, Any]) -> str:
    """Return the SHA-256, in hexadecimal, of the JSON text of `content` without its entry "sha256", which is where the digest is stored."""
    return text_digest(json.dumps({key: value for key, value in content.items() if key != "sha256"}, sort_keys=True))


def file_digest(path: Path | str) -> str:
    """Return the SHA-256 of a file in hexadecimal (about 1.5 GB/s on a CPU with SHA instructions)."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def text_digest(text: str) -> str:
    """Return the SHA-256 of a text in hexadecimal."""
    return hashlib.sha256(to_utf8(text)).hexdigest()
