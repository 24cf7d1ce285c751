"""Draw the charts of dictionaries: a histogram of the densities of features, and a metric of several dictionaries over L0 (mean number of
active features).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from linnaeus.reporting.charts import BLUE, Chart, Scale
from linnaeus.reporting.formatting import format_tick
from linnaeus.reporting.report.html_parts import picture_of_marks

WIDTH, HEIGHT = 520, 260
LEFT, RIGHT, TOP, BOTTOM = 56, 26, 16, 44
PER_DECADE = 4  # bars of the histogram
LEAST = -6  # log10 of the density at the lowest bar, which also counts lower densities


class Point(NamedTuple):
    """Dot for one dictionary in `frontier_chart`.

    series: name of the line that joins dots, such as the name of a run. l0: mean number of active features. value: the metric on the y
    axis. here: True for a dictionary of this run, which gets a larger dot."""

    name: str
    series: str
    l0: float
    value: float
    here: bool


def density_chart(title: str, density: np.ndarray, places: int) -> str:
    """Return a histogram of feature densities as an HTML figure. Features that are never active are only counted in the caption.

    density: [F], share of the places (tokens or pixels) where each feature is active. places: number of places, for the caption."""
    never = int((density == 0).sum())
    found = np.log10(density[density > 0])
    low = min(-1, max(LEAST, math.floor(found.min()))) if len(found) else -3  # -1: all features may be active at every place
    edges = np.linspace(low, 0, PER_DECADE * -low + 1)
    counts = np.histogram(found.clip(low, -1e-9), edges)[0]
    x = Scale(low, 0, LEFT, WIDTH - RIGHT)
    chart = Chart(x, Scale(0, max(int(counts.max(initial=0)), 1) * 1.06, HEIGHT - BOTTOM, TOP))
    chart.y_axis({tick: format_tick(tick) for tick in chart.y.ticks(5)})
    labelled = range(0, low - 1, -1) if low > -4 else range(0, low, -2)  # more labels overlap on a phone
    chart.x_axis({decade: _share(10.0**decade) for decade in labelled}, above=-16)
    chart.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, "density: share of the places where a feature is active", "middle")
    for first, last, count in zip(edges, edges[1:], counts.tolist()):
        about = f"{count} features active in {_share(10**first)} to {_share(10**last)}"
        width, top = x(last) - x(first) - 1.5, chart.y(count)
        if count:
            box = {"x": x(first), "y": top, "width": width, "height": chart.y.start - top, "rx": 1.5}
            chart.add("rect", class_="b0", fill=BLUE, data_about=about, **box)
    dead = f"{never} of {len(density)} never active" if never else f"all {len(density)} active"
    return _figure(title, f"{dead} on {places:,} places", chart, "")


def frontier_chart(title: str, points: Sequence[Point], note: str) -> str:
    """Return an HTML figure of a metric over L0 (mean number of active features), with a dot for each dictionary.

    Points whose `l0` or `value` is not finite, or whose `l0` is 0, are left out. Return "" if fewer than two points remain. note: text
    after the title."""
    shown = [point for point in points if math.isfinite(point.l0) and math.isfinite(point.value) and point.l0 > 0]
    if len(shown) < 2:
        return ""
    x = Scale.around([point.l0 for point in shown], LEFT, WIDTH - RIGHT, log=True, margin=0.12)
    chart = Chart(x, Scale.around([point.value for point in shown], HEIGHT - BOTTOM, TOP, margin=0.12))
    chart.y_axis({tick: f"{tick:.4g}" for tick in chart.y.ticks(5)})
    chart.x_axis({tick: f"{tick:.3g}" for tick in x.ticks(6)}, above=-16)
    chart.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, "active features (L0)", "middle")
    series = list(dict.fromkeys(point.series for point in shown))
    for number, name in enumerate(series):
        own = sorted((point for point in shown if point.series == name), key=lambda point: point.l0)
        if len(own) > 1:
            chart.curve([(point.l0, point.value) for point in own], BLUE, f"s{number % 8}")
        for point in own:
            about = f"{point.name}: L0 {point.l0:.1f}, {point.value:.4f}"
            chart.dot(point.l0, point.value, BLUE, f"s{number % 8}", radius=6 if point.here else 3.6, data_about=about)
    keys = "".join(f'<span class="key"><i class="b{i % 8}"></i>{escape(name)}</span>' for i, name in enumerate(series))
    return _figure(title, note, chart, keys if len(series) > 1 else "")


def _figure(title: str, note: str, chart: Chart, legend: str) -> str:
    picture = picture_of_marks(chart, WIDTH, HEIGHT, title)
    caption = f'<figcaption>{escape(title)}<span class="note">{escape(note)}</span></figcaption>'
    return f'<figure class="chart">{caption}<div class="legend">{legend}</div>{picture}</figure>'


def _share(share: float) -> str:
    """Return a fraction as text in per cent, such as `0.1 %`."""
    return f"{100 * share:.3g} %".replace("e-0", "e-")
