"""Text for people: durations, rates, memory, values, and the lines of a progress report."""

import math
from collections.abc import Iterable, Sequence

WIDTH = 130  # columns of a line of a report, without its time stamp
INDENT = " " * 8  # of the second and later lines of a report, so that only percentages stand at the left edge


def format_duration(seconds: float) -> str:
    """Return `42s`, `3m05s`, `2h07m` or `3d04h`; `?` for a negative or non-finite number."""
    if not math.isfinite(seconds) or seconds < 0:
        return "?"
    whole = round(seconds)
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // part:02d}{smaller}"
    return f"{whole}s"


def format_rate(per_second: float) -> str:
    """Return a throughput with at most three significant digits: `0.52`, `87.3`, `1.24k`, `2M`; `?` if it is not finite."""
    factor, suffix = next(((f, s) for f, s in ((1e6, "M"), (1e3, "k")) if per_second >= 0.9995 * f), (1, ""))
    return f"{per_second / factor:.3g}{suffix}" if math.isfinite(per_second) else "?"


def format_memory(mebibytes: float) -> str:
    """Return `812 MiB` or `13.2 GiB`."""
    return f"{mebibytes / 1024:.1f} GiB" if mebibytes >= 1024 else f"{mebibytes:.0f} MiB"


def format_value(value: float | int | str) -> str:
    """Return a text unchanged, a whole number with separators, and any other number in four digits."""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def format_tick(value: float) -> str:
    """Return a number for an axis, large ones with a unit: `0.5`, `1200`, `25k`, `3M`."""
    for limit, factor, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= limit:
            return f"{value / factor:g}{unit}"
    return f"{value:g}"


def shorten(text: str, letters: int) -> str:
    """Return `text` cut to `letters`, with an ellipsis where something is left out."""
    return text if len(text) <= letters else text[: letters - 1] + "…"


def layout(sections: Iterable[Sequence[str]]) -> str:
    """Return the texts of all sections, two blanks apart, on lines of at most `WIDTH` columns.

    A section that does not fit on the rest of a line starts a new one. A section longer than a line is broken between its texts; a
    single text is never broken."""
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
