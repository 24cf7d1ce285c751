"""Draw a metric over the device time (training time x processes), with a dot for each group of runs and the Pareto front.

The front has the finished groups whose metric is better than that of every other finished group with an equal or a shorter device time.
"""

from collections.abc import Sequence
from typing import NamedTuple

from linnaeus.reporting.charts import BLUE, INK, Chart, Scale
from linnaeus.reporting.formatting import format_duration, format_tick
from linnaeus.reporting.report.html_parts import explained, picture_of_marks
from linnaeus.reporting.report.metric_names import direction, is_share, metric_name, show_value

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 290, 66, 20, 16, 38


class Entry(NamedTuple):
    """Group of runs as a dot in the chart.

    name: label. cost: mean device time in seconds. quality: mean of the metric. deviation: standard deviation of the metric over the runs;
    None for one run. unfinished: which runs did not finish, in words; "" if all finished."""

    name: str
    cost: float
    quality: float
    deviation: float | None
    unfinished: str = ""


def frontier(entries: Sequence[Entry], higher: bool) -> list[Entry]:
    """Return the entries on the Pareto front, in ascending order of cost. higher: True if a higher quality is better.

    An entry is on the front if its quality is better than the quality of every other entry with an equal or a lower cost. Of entries with
    equal cost and quality, only the first is returned. Unfinished entries are left out: their cost is not that of the whole run."""
    best: list[Entry] = []
    for entry in sorted((entry for entry in entries if not entry.unfinished), key=lambda e: (e.cost, -e.quality if higher else e.quality)):
        if not best or (entry.quality > best[-1].quality if higher else entry.quality < best[-1].quality):
            best.append(entry)
    return best


def pareto_chart(metric: str, entries: Sequence[Entry]) -> str:
    """Return a chart of the metric over the device time, with the Pareto front, as HTML. Return "" for fewer than two entries, or if
    neither a higher nor a lower value of the metric is better.

    `metric`: key of the metric. `entries`: groups; `quality` is the mean of this metric."""
    if len(entries) < 2 or not direction(metric):
        return ""
    higher = direction(metric) > 0
    share = is_share(metric)
    x = Scale.around([e.cost for e in entries], LEFT, WIDTH - RIGHT, log=True, margin=0.08)
    spread = [v for e in entries for v in (e.quality - (e.deviation or 0), e.quality + (e.deviation or 0))]
    chart = Chart(x, Scale.around(spread, HEIGHT - BOTTOM, TOP, margin=0.08))
    chart.y_axis({tick: f"{100 * tick:.4g} %" if share else format_tick(tick) for tick in chart.y.ticks(6)})
    chart.x_axis({tick: format_duration(tick) if tick >= 60 else f"{tick:g}s" for tick in x.ticks(5)}, above=-17)
    chart.text(WIDTH - RIGHT, HEIGHT - 3, "device time", "end")
    best = frontier(entries, higher)
    if len(best) > 1:
        chart.curve([(e.cost, e.quality) for e in best], BLUE, "s0 faint")
    free = -100.0
    for entry in sorted(entries, key=lambda e: -e.quality):
        colour = "s0" if entry in best else "s7"
        px, py = chart.x(entry.cost), chart.y(entry.quality)
        if entry.deviation:
            ends = [chart.y(entry.quality + sign * entry.deviation) for sign in (-1, 1)]
            chart.add("line", class_=f"{colour} whisker", x1=px, x2=px, y1=ends[0], y2=ends[1])
        kind = f"{colour} hollow" if entry.unfinished else colour
        chart.dot(entry.cost, entry.quality, BLUE, kind, 5, data_about=_words(metric, entry))
        free = max(py + 4, free + 15)
        side, anchor = (10, "start") if px < 0.6 * WIDTH else (-10, "end")  # names stay inside
        chart.text(px + side, free, entry.name[:34], anchor, INK)
    words = "; ".join(_words(metric, entry) for entry in entries)
    name = metric_name(metric.partition("/")[2].replace("/", " "))
    label = f"{name} over device time. {words}"
    picture = picture_of_marks(chart, WIDTH, HEIGHT, label)
    about = (
        "Device time: training time x processes. Line: Pareto front, the finished runs that no other one beats in both. "
        "Hollow dots: unfinished runs. Bars: standard deviations over seeds."
    )
    caption = explained(f"{name} over device time", about)
    return f'<figure class="chart pareto"><figcaption>{caption}</figcaption>{picture}</figure>'


def _words(metric: str, entry: Entry) -> str:
    status = f", {entry.unfinished}" if entry.unfinished else ""
    return f"{entry.name}: {show_value(metric, entry.quality)} in {format_duration(entry.cost)}{status}"
