"""Draw charts as SVG text: scales, ticks and elements. A plotting library would add about a second of imports to every start.

report.html (`report/line_chart.py`), schedule.svg (`plans/schedule_chart.py`) and sweep.svg (`sweep/picture.py`) use this module. Colours
are SVG attributes. The style sheet of report.html overrides them by class and by value, so that charts in report.html follow the light or
dark theme.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from linnaeus.reporting.formatting import shorten

# The palette of Okabe and Ito, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, PURPLE, VERMILION, SKY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9"
INK, GREY, RULE = "#222222", "#8a8a8a", "#e6e6e6"
FONT = "Helvetica, Arial, DejaVu Sans, sans-serif"
LETTER = 7.3  # pixels of an average letter of 12 px in the widest of these fonts


def element(name: str, content: str = "", /, **attributes: float | str) -> str:
    """Return an SVG element with the given attributes. `content` is inserted without escaping.

    In attribute names `_` becomes `-`, and a final `_` is removed (`class_`). Numbers are rounded to a tenth of a pixel."""
    texts = (v if isinstance(v, str) else f"{round(v, 1):g}" for v in attributes.values())
    pairs = (f' {key.rstrip("_").replace("_", "-")}="{escape(text)}"' for key, text in zip(attributes, texts))
    return f"<{name}{''.join(pairs)}>{content}</{name}>"


def document(width: float, height: float, parts: Iterable[str]) -> str:
    """Return a complete SVG file that contains the elements `parts` on a white background."""
    head = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {width:g} {height:g}", "font-family": FONT, "font-size": "12"}
    background = element("rect", class_="ground", width="100%", height="100%", fill="white")
    return element("svg", background + "\n".join(parts), width=width, height=height, **head) + "\n"


@dataclass(frozen=True)
class Scale:
    """Linear or logarithmic map from the values `low`..`high` to the pixels `start`..`end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def around(cls, values: Collection[float], start: float, end: float, log: bool = False, margin: float = 0.04) -> Scale:
        """Return a scale from pixel `start` to pixel `end` that contains all `values`, with a margin at each end.

        margin: fraction of the range of `values`; with `log`, of the range of their logarithms. If all values are equal, `margin` is not
        used: a linear scale then adds half the absolute value at each end (0.5 for the value 0), a logarithmic scale a factor of 3."""
        low, high = min(values), max(values)
        if log:
            factor = (high / low) ** margin if high > low else 3.0
            return cls(low / factor, high * factor, start, end, log)
        extra = margin * (high - low) if high > low else 0.5 * (abs(low) or 1.0)
        return cls(low - extra, high + extra, start, end)

    def __call__(self, value: float) -> float:
        low, high, value = (math.log(v) for v in (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self, count: int) -> list[float]:
        """Return about `count` round values between `low` and `high`, for the labels of an axis."""
        found = log_ticks(self.low, self.high, count) if self.log else []
        return found if len(found) > 1 else nice_ticks(self.low, self.high, count)


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """Return all multiples of a step inside `low`..`high`. The step is the smallest of 1, 2, 2.5 or 5 times a power of ten that gives at
    most about `count` values."""
    smallest = (high - low) / max(count - 1, 1)
    power = 10.0 ** math.floor(math.log10(smallest))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= smallest * 0.999)
    return [round(i * step, 12) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float, count: int) -> list[float]:
    """Return powers of ten inside `low`..`high`; if `high` is at most 200 times `low`, also 2 and 5 times powers of ten.

    In a range of many decades only every n-th power is returned, so that there are about `count` values."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if high <= 200 * low else (1,)
    ticks = [f * 10.0**power for power in range(first, last + 1, max(1, (last - first) // (count - 1))) for f in factors]
    return [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]


class Chart:
    """Plot area whose axes are the scales `x` and `y`. Its methods append SVG elements to `parts`, in drawing order."""

    def __init__(self, x: Scale, y: Scale) -> None:
        self.x, self.y = x, y
        self.parts: list[str] = []

    def add(self, name: str, content: str = "", /, **attributes: float | str) -> None:
        self.parts.append(element(name, content, **attributes))

    def text(self, x: float, y: float, text: str, anchor: str = "start", colour: str = GREY, **attributes: float | str) -> None:
        """Write `text` on a baseline through the pixel (`x`, `y`), which is its start, middle or end, depending on `anchor`."""
        class_ = {GREY: "axis", INK: "axis ink"}.get(colour, "axis coloured")
        self.add("text", escape(text), class_=class_, x=x, y=y, text_anchor=anchor, fill=colour, **attributes)

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str = RULE, **attributes: float | str) -> None:
        """Draw a straight line from the pixel (`x1`, `y1`) to the pixel (`x2`, `y2`)."""
        self.add("line", class_="grid", x1=x1, y1=y1, x2=x2, y2=y2, stroke=colour, **attributes)

    def y_axis(self, labels: Mapping[float, str]) -> None:
        """Draw the y axis: for each {value: label}, a horizontal line across the chart and the label to the left of the line."""
        for value, label in labels.items():
            self.line(self.x.start, self.y(value), self.x.end, self.y(value))
            self.text(self.x.start - 8, self.y(value) + 4, label, "end")

    def x_axis(self, labels: Mapping[float, str], colour: str = GREY, above: float = -18, tick: float = 0) -> None:
        """Write the x axis: the label of each x value in `labels`, `above` pixels above the lower edge of the chart (below the edge if
        negative).

        Unless `tick` is 0, also draw marks of `tick` pixels upwards from the edge. A label that would overlap the label to its left is left
        out."""
        free = -math.inf
        for value, label in sorted(labels.items()):
            x, half = self.x(value), len(label) * LETTER / 2
            if tick:
                self.line(x, self.y.start, x, self.y.start - tick, colour)
            if x - half >= free:
                self.text(x, self.y.start - above, label, "middle", colour)
                free = x + half + LETTER

    def curve(self, points: Sequence[tuple[float, float]], colour: str, class_: str = "", width: float = 2) -> None:
        """Draw a line through `points`, which are (x, y) values, not pixels."""
        path = "M" + "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points)
        self.add("path", d=path, class_=f"curve {class_}", fill="none", stroke=colour, stroke_width=width, stroke_linejoin="round")

    def dot(
        self, x: float, y: float, colour: str, class_: str = "", radius: float = 3.2, title: str = "", **attributes: float | str
    ) -> None:
        """Draw a point at the values (`x`, `y`); browsers show `title` under the pointer. On a page, use `data_about` instead, see
        `picture_of_marks`."""
        inner = element("title", escape(title)) if title else ""
        place = {"cx": self.x(x), "cy": self.y(y), "r": radius}
        self.add("circle", inner, class_=f"dot {class_}", **place, fill=colour, fill_opacity=0.9, **attributes)

    def area(self, xs: tuple[float, float, float, float], colour: str, text: str = "", note: str = "", title: str = "") -> None:
        """Fill a quadrangle that reaches from the lower to the upper edge of the chart.

        xs: x values of the corners: lower left, upper left, upper right, lower right. text, note: written in the middle if they fit. title:
        tooltip."""
        low, high, (a, b, c, d) = self.y.start, self.y.end, map(self.x, xs)
        corners = f"{a:.1f},{low:g} {b:.1f},{high:g} {c:.1f},{high:g} {d:.1f},{low:g}"
        self.add("polygon", element("title", escape(title)) if title else "", points=corners, fill=colour)
        middle, room, base = (a + b + c + d) / 4, (c + d - a - b) / 2, (low + high) / 2 + 4
        if text and room > 4 * LETTER:
            self.text(middle, base - 8 * bool(note), shorten(text, int(room / LETTER) - 1), "middle", INK)
            if note:
                self.text(middle, base + 9, note, "middle")
