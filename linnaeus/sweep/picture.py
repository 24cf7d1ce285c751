"""The metric over each parameter, one panel per parameter, as one SVG: a point per trial, a bar at the mean where trials share a value,
the best trial in another colour."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from statistics import fmean

from linnaeus.reporting.charts import log_ticks, nice_ticks, short
from linnaeus.sweep.outcomes import Metric, Outcome
from linnaeus.sweep.parameters import Parameter
from linnaeus.sweep.study_record import ranking
from linnaeus.sweep.trials import Trial, shown

WIDTH, HEIGHT, COLUMNS = 460, 300, 2  # of a panel, with its axes
LEFT, RIGHT, TOP, BOTTOM, HEAD = 66, 22, 18, 56, 44
POINT, BEST, MEAN, INK, GREY, RULE = "#0072B2", "#D55E00", "#56B4E9", "#222222", "#8a8a8a", "#e6e6e6"
MANY = 20.0  # ratio of the largest to the smallest value from which an axis of positive numbers is logarithmic
LABELS = 8  # most values that are labelled one by one


def sweep_picture(parameters: Sequence[Parameter], trials: Sequence[Trial], outcomes: Mapping[int, Outcome], metric: Metric) -> str | None:
    """The SVG; None when there is nothing to draw: no parameter, or no trial with a value."""
    measured = [t for t in ranking(trials, outcomes, metric) if t.number in outcomes and outcomes[t.number].value is not None]
    if not measured or not parameters:
        return None
    values = [outcomes[trial.number].value or 0.0 for trial in measured]
    columns = min(COLUMNS, len(parameters))
    rows = math.ceil(len(parameters) / columns)
    width, height = columns * WIDTH, HEAD + rows * HEIGHT
    panels = []
    for i, p in enumerate(parameters):
        points = [(trial.values[p.key], value) for trial, value in zip(measured, values)]
        panels.append(_panel(p, points, i % columns * WIDTH, HEAD + i // columns * HEIGHT))
    best = f"best: trial {measured[0].number}, {shown(repr(values[0]))}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="Helvetica, Arial, DejaVu Sans, sans-serif" font-size="12" fill="{INK}">'
        f'<rect width="100%" height="100%" fill="white"/>'
        f'<text x="20" y="26" font-size="16" font-weight="bold">{escape(metric.name)}</text>'
        f'<text x="{width - RIGHT}" y="26" text-anchor="end" fill="{BEST}">{escape(best)}</text>{"".join(panels)}</svg>\n'
    )


class _Axis:
    """Where a value lies between 0 and 1, and what is written beside it."""

    def __init__(self, p: Parameter, texts: Sequence[str]) -> None:
        numbers = [_number(text) for text in texts]
        self.numeric, self.log = all(number is not None for number in numbers), False
        if not self.numeric:
            self.order = [choice for choice in p.choices or sorted(set(texts)) if choice in set(texts)]
            self.ticks = [((i + 0.5) / len(self.order), _cut(text, 60 // len(self.order) + 2)) for i, text in enumerate(self.order)]
            return
        found = sorted({number for number in numbers if number is not None})
        self.log = bool(p.interval and p.interval.log) or (found[0] > 0 and found[-1] / found[0] >= MANY)
        self.low, self.high = found[0], found[-1]
        self.ticks = [(self.place(x), short(x)) for x in self._marks(found)]

    def _marks(self, found: list[float]) -> list[float]:
        if len(found) <= LABELS:
            return found
        marks = log_ticks(self.low, self.high) if self.log else nice_ticks(self.low, self.high, 6)
        return [x for x in marks if self.low <= x <= self.high]

    def place(self, x: float) -> float:
        if self.high == self.low:
            return 0.5
        low, high, x = (math.log(v) for v in (self.low, self.high, x)) if self.log else (self.low, self.high, x)
        return 0.04 + 0.92 * (x - low) / (high - low)

    def at(self, text: str) -> float:
        return self.place(float(text)) if self.numeric else (self.order.index(text) + 0.5) / len(self.order)


def _panel(p: Parameter, points: Sequence[tuple[str, float]], left: float, top: float) -> str:
    """`points` (value of the parameter, metric), the best first."""
    axis, ys = _Axis(p, [text for text, _ in points]), [y for _, y in points]
    ticks = nice_ticks(min(ys), max(ys), 7)
    margin = 0.06 * (max(*ys, *ticks) - min(*ys, *ticks))
    low, high = min(*ys, *ticks) - margin, max(*ys, *ticks) + margin

    def x_of(share: float) -> float:
        return left + LEFT + share * (WIDTH - LEFT - RIGHT)

    def y_of(y: float) -> float:
        return top + HEIGHT - BOTTOM - ((y - low) / (high - low) if high > low else 0.5) * (HEIGHT - TOP - BOTTOM)

    parts = []
    for tick in ticks:
        parts.append(_line(x_of(0), y_of(tick), x_of(1), y_of(tick), RULE))
        parts.append(_text(x_of(0) - 8, y_of(tick) + 4, f"{tick:.4g}", "end", GREY))
    for share, text in axis.ticks:
        parts.append(_text(x_of(share), top + HEIGHT - BOTTOM + 18, text, "middle", GREY))
    name = f"{p.key} (logarithmic)" if axis.log else p.key
    parts.append(_text(x_of(0.5), top + HEIGHT - BOTTOM + 38, name, "middle", INK))
    shared: dict[str, list[float]] = {}
    for text, y in points:
        shared.setdefault(text, []).append(y)
    for text, group in shared.items():
        if len(group) > 1:
            x, y = x_of(axis.at(text)), y_of(fmean(group))
            parts.append(_line(x - 13, y, x + 13, y, MEAN, 'stroke-width="4" stroke-linecap="round"'))
    for i, (text, y) in reversed(list(enumerate(points))):
        colour, radius = (POINT, 4) if i else (BEST, 5.5)
        parts.append(
            f'<circle cx="{x_of(axis.at(text)):.1f}" cy="{y_of(y):.1f}" r="{radius}" fill="{colour}" fill-opacity="0.85">'
            f"<title>{escape(f'{p.key}={text}: {y:.6g}')}</title></circle>"
        )
    return "".join(parts)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _text(x: float, y: float, text: str, anchor: str, colour: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, extra: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" {extra}/>'
