"""Line charts as inline SVG: no library, no request; colours come from the page's style sheet, so that they follow its theme.

A chart carries its points in `data-series`, which the page's script reads to show values under the pointer; without
scripts it is a plain picture.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 560, 260
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 34
MOST_POINTS = 400  # per series; more would only thicken the line
COLOURS = 8  # classes c0..c7 of the style sheet


@dataclass(frozen=True)
class Series:
    """One line: points in the order of x; `dots` marks each of them (for rare events such as validations); a `faint` one is a
    background in the colour of its successor, without a name of its own."""

    name: str
    points: list[tuple[float, float]]
    dots: bool = False
    faint: bool = False


def line_chart(
    title: str, series: Sequence[Series], show: Callable[[float], str], *, last: float = 0.0, log: bool = False, note: str = ""
) -> str:
    """An HTML figure; the empty text when no series has a finite point. `show` formats a value of the y axis; x runs from 0 to
    `last`, or as far as the points go."""
    series = [Series(s.name, thin(finite(s.points, log)), s.dots, s.faint) for s in series]
    series = [s for s in series if s.points]
    if not series:
        return ""
    xs = [x for s in series for x, _ in s.points]
    ys = [y for s in series for _, y in s.points]
    x_low, x_high = 0.0, max(last, *xs, 1.0)
    x_ticks = nice_ticks(x_low, x_high, 6)
    y_ticks = log_ticks(min(ys), max(ys)) if log else nice_ticks(min(ys), max(ys), 6)
    y_low, y_high = (min(*ys, y_ticks[0]), max(*ys, y_ticks[-1])) if len(y_ticks) > 1 else _span(min(ys), max(ys))
    colours = [sum(not earlier.faint for earlier in series[:i]) % COLOURS for i in range(len(series))]

    def place_x(x: float) -> float:
        return LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)

    def place_y(y: float) -> float:
        a, b, c = (math.log(y_low), math.log(y_high), math.log(y)) if log else (y_low, y_high, y)
        return HEIGHT - BOTTOM - ((c - a) / (b - a) if b > a else 0.5) * (HEIGHT - TOP - BOTTOM)

    grid = [_y_tick(place_y(t), show(t)) for t in y_ticks] + [_x_tick(place_x(t), short(t)) for t in x_ticks]
    lines = [_line(colour, s, place_x, place_y) for colour, s in zip(colours, series)]
    data = [
        {"name": s.name, "c": colour, "p": [[x, round(place_x(x), 1), show(y)] for x, y in s.points]}
        for colour, s in zip(colours, series)
        if not s.faint
    ]
    svg = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(title, quote=True)}" '
        f'data-series="{html.escape(json.dumps(data), quote=True)}">{"".join(grid)}{"".join(lines)}'
        f'<text class="axis" x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">step</text></svg>'
    )
    named = [(colour, s.name) for colour, s in zip(colours, series) if not s.faint]
    keys = "".join(f'<span class="key"><i class="b{colour}"></i>{html.escape(name)}</span>' for colour, name in named)
    legend = keys if len(named) > 1 else ""
    aside = f'<span class="note">{html.escape(note)}</span>' if note else ""
    return f'<figure><figcaption>{html.escape(title)}{aside}</figcaption><div class="legend">{legend}</div>{svg}</figure>'


def _y_tick(y: float, text: str) -> str:
    label = f'<text class="axis" x="{LEFT - 8}" y="{y + 3.5:.1f}" text-anchor="end">{text}</text>'
    return f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>{label}'


def _x_tick(x: float, text: str) -> str:
    return f'<text class="axis" x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{text}</text>'


def _line(colour_number: int, series: Series, place_x: Callable[[float], float], place_y: Callable[[float], float]) -> str:
    placed = [(place_x(x), place_y(y)) for x, y in series.points]
    colour = f"s{colour_number}"
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in placed)
    drawn = f'<path class="curve {colour}{" faint" if series.faint else ""}" d="{path}"/>' if len(placed) > 1 else ""
    if series.dots or len(placed) == 1:
        drawn += "".join(f'<circle class="dot {colour}" cx="{x:.1f}" cy="{y:.1f}" r="3.2"/>' for x, y in placed)
    return drawn


def finite(points: Sequence[tuple[float, float]], positive: bool = False) -> list[tuple[float, float]]:
    """The points that can be drawn; on a logarithmic axis only positive ones."""
    return [(x, y) for x, y in points if math.isfinite(y) and (y > 0 or not positive)]


def thin(points: list[tuple[float, float]], most: int = MOST_POINTS) -> list[tuple[float, float]]:
    """At most about `most` points: the lowest and the highest of each bucket, so that spikes stay, and the two ends."""
    if len(points) <= most:
        return points
    size = math.ceil(len(points) / (most // 2))
    kept = {0, len(points) - 1}
    for start in range(0, len(points), size):
        bucket = range(start, min(start + size, len(points)))
        kept |= {min(bucket, key=lambda i: points[i][1]), max(bucket, key=lambda i: points[i][1])}
    return [points[i] for i in sorted(kept)]


def smooth(points: list[tuple[float, float]], span: float = 0.04) -> list[tuple[float, float]]:
    """Means over windows of about `span` of the points, each around its own point, so that the line does not lag."""
    found = finite(points)
    half = max(1, round(span * len(found) / 2))
    averaged = []
    for i, (x, _) in enumerate(found):
        reach = min(half, i, len(found) - 1 - i)  # narrower at the ends, where a one-sided window would lean
        window = found[i - reach : i + reach + 1]
        averaged.append((x, sum(y for _, y in window) / len(window)))
    return averaged


def _span(low: float, high: float) -> tuple[float, float]:
    return (low, high) if high > low else (low - (abs(low) or 1.0) * 0.5, high + (abs(high) or 1.0) * 0.5)


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten) covering low..high; only those inside for a wide axis."""
    low, high = _span(low, high)
    raw = (high - low) / max(count - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten around low..high; with 2 and 5 in between when that is narrow."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    every = max(1, (last - first) // 5)
    ticks = [f * 10.0**e for e in range(first, last + 1, every) for f in factors]
    inside = [t for t in ticks if low * 0.999 <= t <= high * 1.001]
    return inside if len(inside) >= 2 else [10.0**first, 10.0 ** max(last, first + 1)]


def short(value: float) -> str:
    """1200 -> 1.2k: for axes."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):g}{unit}"
    return f"{value:g}"
