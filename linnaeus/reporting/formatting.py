"""How a progress report reads: quantities as a person takes them in, and parts laid out as a few plain lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

WIDTH = 130  # columns of a line, besides its time
INDENT = " " * 8  # of a report's further lines: a percentage begins each report, and nothing stands under it


def format_duration(seconds: float) -> str:
    """`42s`, `3m05s`, `2h07m`, `3d04h`; `?` for what is not known."""
    if not math.isfinite(seconds) or seconds < 0:
        return "?"
    whole = round(seconds)
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // part:02d}{smaller}"
    return f"{whole}s"


def format_rate(per_second: float) -> str:
    """A throughput in three digits: `0.52`, `87.3`, `1.24k`."""
    if not math.isfinite(per_second):
        return "?"
    for factor, suffix in ((1e6, "M"), (1e3, "k")):
        if per_second >= factor:
            return f"{per_second / factor:.3g}{suffix}"
    return f"{per_second:.3g}"


def format_memory(mebibytes: float) -> str:
    """`812 MiB`, `13.2 GiB`."""
    return f"{mebibytes / 1024:.1f} GiB" if mebibytes >= 1024 else f"{mebibytes:.0f} MiB"


def format_value(value: float | int | str) -> str:
    """Any value in few characters: texts as they are, whole numbers with separators, others in four digits."""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def layout(sections: Iterable[Sequence[str]]) -> str:
    """The texts of each section, two blanks apart, on lines of at most `WIDTH` columns where no text alone is longer; a section that
    does not fit beside the one before it begins a line."""
    lines = [""]
    for texts in sections:
        whole = "  ".join(texts)
        for text in (whole,) if len(INDENT + whole) <= WIDTH else texts:
            if not text:
                continue
            if lines[-1] and len(lines[-1]) + 2 + len(text) > WIDTH:
                lines.append("")
            lines[-1] += f"  {text}" if lines[-1].strip() else f"{INDENT}{text}" if len(lines) > 1 else text
    return "\n".join(lines)
