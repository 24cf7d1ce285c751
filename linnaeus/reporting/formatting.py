"""Format numbers for people: durations, rates, memory, values, and the lines of a progress report."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

WIDTH = 130  # columns of a line of a report, without its time stamp
BARS, ASCII_BARS = "▁▂▃▄▅▆▇█", "_.-=+*#@"  # from low to high
INDENT = " " * 8  # of the second and later lines of a report, so that only percentages stand at the left edge


def format_duration(seconds: float) -> str:
    """Return a duration as `42s`, `3m05s`, `2h07m` or `3d04h`; `?` for a negative or non-finite number."""
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


def format_seconds(seconds: float) -> str:
    """Return a short time with three significant digits and a suitable unit: `1.38 s`, `40.2 ms`, `312 us`."""
    for limit, factor, unit in ((0.9995, 1, "s"), (0.9995e-3, 1e3, "ms")):
        if seconds >= limit:
            return f"{_three_digits(factor * seconds)} {unit}"
    return f"{_three_digits(1e6 * seconds)} us"


def _three_digits(value: float) -> str:
    rounded = float(f"{value:.3g}")
    return f"{rounded:.{max(0, 2 - math.floor(math.log10(rounded)))}f}" if value > 0 else "0"


def format_percent(share: float, digits: int = 1) -> str:
    """Return a fraction from 0 to 1 as `88.5 %`."""
    return f"{100 * share:.{digits}f} %"


def format_loss(value: float) -> str:
    """Return a loss with four decimals, or with four significant digits if it is 1000 or more."""
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:.4g}"


def format_memory(mebibytes: float) -> str:
    """Return an amount of memory as `812 MiB` or `13.2 GiB`."""
    return f"{mebibytes / 1024:.1f} GiB" if mebibytes >= 1024 else f"{mebibytes:.0f} MiB"


def format_size(size: int) -> str:
    """Return the size of files in bytes with three significant digits and a suitable unit: `1.38 GB`, `24.5 MB`, `6.02 kB`, `512 bytes`."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= 0.9995 * factor:
            return f"{_three_digits(size / factor)} {unit}"
    return f"{size} bytes"


def format_value(value: float | int | str) -> str:
    """Return a string unchanged, an integer with thousands separators, and any other number with four significant digits."""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def format_tick(value: float) -> str:
    """Return a number for the axis of a chart, a large one with a suffix: `0.5`, `1200`, `25k`, `3M`."""
    if abs(value) >= 1e12:
        return f"{value:g}"
    for limit, factor, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= limit:
            return f"{value / factor:g}{unit}"
    return f"{value:g}"


def shorten(text: str, letters: int) -> str:
    """Return `text` cut to `letters` characters; the last one is an ellipsis if something is left out."""
    return text if len(text) <= letters else text[: letters - 1] + "…"


def fit(texts: Sequence[str], width: int) -> str:
    """Return one line of at most `width` columns: the first texts, as many as fit, with two blanks between them; "" if none fits."""
    line = ""
    for text in texts:
        if len(line) + 2 * bool(line) + len(text) > width:
            break
        line += f"  {text}" if line else text
    return line


def sparkline(values: Sequence[float], width: int, limits: tuple[float, float] | None = None, bars: str = BARS) -> str:
    """Return a line chart as text: one of the characters `bars` for each finite value, the lowest character for the least value; "" without
    finite values.

    With more than `width` values, each of `width` characters shows the mean of consecutive values. limits: values of the lowest and of the
    highest character; None: the least and the largest of the means."""
    finite = [value for value in values if math.isfinite(value)]
    count = min(width, len(finite))
    edges = [len(finite) * number // count for number in range(count + 1)] if count > 0 else []
    means = [sum(finite[first:last]) / (last - first) for first, last in pairwise(edges)]
    low, high = limits or (min(means, default=0.0), max(means, default=0.0))
    return "".join(bars[round((len(bars) - 1) * (mean - low) / (high - low))] if high > low else bars[0] for mean in means)


def pass_words(key: str) -> str:
    """Return the name of the validation pass `key` in words: `all metadata` for `val`, `without metadata` for `val_mask_meta`, `without
    spatial and temporal` for `val_mask_SPATIAL_TEMPORAL`.

    For a pass with averaged weights (`val_ema`), `, averaged weights` is appended."""
    averaged = key.startswith("val_ema")
    masked = key.replace("val_ema", "val", 1).removeprefix("val").removeprefix("_mask").removeprefix("_")
    names = ["metadata"] if masked == "meta" else [name.lower() for name in masked.split("_") if name]
    words = f"without {' and '.join(', '.join(names).rsplit(', ', 1))}" if names else "all metadata"
    return f"{words}, averaged weights" if averaged else words


def layout(sections: Iterable[Sequence[str]]) -> str:
    """Arrange the texts of all sections on lines of at most `WIDTH` columns, separated by two blanks. sections: the texts of each section.

    A section that does not fit on the rest of a line starts a new line. A section longer than a line is broken between its texts. A text is
    never broken, so a text longer than `WIDTH` gives a longer line. Lines after the first begin with `INDENT`."""
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
