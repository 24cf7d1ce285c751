"""Draw a line chart of report.html as an SVG picture. report.js shows the values at the mouse pointer, or at a cursor moved by arrow keys.

The attribute `data-series` has the points, `data-x` and `data-y` have the scales. Without scripts the chart is a static picture.
"""

import json
from collections.abc import Mapping, Sequence
from html import escape

from linnaeus.reporting.charts import BLUE, Chart, Scale, element
from linnaeus.reporting.formatting import format_tick
from linnaeus.reporting.report.downsampling import Curve, Points
from linnaeus.reporting.report.html_parts import explained

WIDTH, HEIGHT = 560, 270
LEFT, RIGHT, TOP, BOTTOM = 66, 14, 14, 36
MAX_DOTS = 60  # a line of at most this many points has a dot for each and is not smoothed
CLASSES = 8  # colours: classes s0 to s7 of the style sheet

Lines = Mapping[str, Curve]


def charts_of(charts: Sequence[str]) -> str:
    """Return `charts` (HTML of each chart; "" for one without points) side by side as HTML; "" if all are empty."""
    found = "".join(charts)
    return f'<div class="charts">{found}</div>' if found else ""


def line_chart(
    title: str,
    lines: Lines,
    last: float = 0.0,
    smoothed: bool = False,
    log: bool = False,
    share: bool = False,
    note: str = "",
    about: str = "",
    marks: Sequence[float] = (),
    alarms: Sequence[float] = (),
) -> str:
    """Return an HTML figure of `lines` (name -> curve); "" if no line has a point.

    last: step up to which the x axis extends, or further if a line has a later point. smoothed: True to draw the moving average of each
    line of more than `MAX_DOTS` points, and behind it the values as a faint line. log: True for a logarithmic y axis; values <= 0 are left
    out. share: True if the values are fractions, shown in per cent. note: text beside the title. about: tooltip of the title. marks: steps
    with a mark at the lower edge, such as validations. alarms: steps with a red mark at the upper edge."""
    points = {name: [(x, y) for x, y in curve.points if not log or y > 0] for name, curve in lines.items()}
    points = {name: found for name, found in points.items() if found}
    if not points:
        return ""
    x = Scale(0.0, max(last, 1.0, *(x for found in points.values() for x, _ in found)), LEFT, WIDTH - RIGHT)
    y = Scale.around([y for found in points.values() for _, y in found], HEIGHT - BOTTOM, TOP, log)
    chart = Chart(x, _of_shares(y) if share else y)
    chart.y_axis({tick: f"{100 * tick:.4g} %" if share else format_tick(tick) for tick in chart.y.ticks(6)})
    chart.x_axis({tick: format_tick(tick) for tick in x.ticks(6)}, above=-17)
    chart.text(WIDTH - RIGHT, HEIGHT - 3, "step", "end")
    for step in marks:
        chart.add("line", class_="mark", x1=x(step), y1=chart.y.start, x2=x(step), y2=chart.y.start - 7)
    for step in alarms:
        chart.add("line", class_="alarm", x1=x(step), y1=chart.y.end, x2=x(step), y2=chart.y.end + 9)
    data = []
    for number, (name, found) in enumerate(points.items()):
        colour = f"{number % CLASSES}{' dashed' if number >= CLASSES else ''}"
        _draw_line(chart, found, lines[name], f"s{colour}", smoothed, log)
        data.append({"name": name, "c": colour, "p": [[px, float(f"{py:.5g}")] for px, py in found]})
    return _figure(title, chart, data, share, note, about)


def _of_shares(scale: Scale) -> Scale:
    """Limit the scale of fractions to -0.01 to 1.01; the margin keeps lines at 0 and 1 visible.

    If the middle of `scale` is not in 0 to 1, return `scale` unchanged."""
    middle = (scale.low + scale.high) / 2
    if not 0 <= middle <= 1:
        return scale
    return Scale(max(scale.low, -0.01), min(scale.high, 1.01), scale.start, scale.end)


def _draw_line(chart: Chart, found: Points, curve: Curve, colour: str, smoothed: bool, log: bool) -> None:
    dots = found if len(found) <= MAX_DOTS else []
    if smoothed and not dots:
        chart.curve(found, BLUE, f"{colour} faint")
        found = [(x, y) for x, y in curve.smooth() if not log or y > 0]
    if found:
        chart.curve(found, BLUE, colour)
    for point in dots:
        chart.dot(*point, BLUE, colour, 2.6)


def _figure(title: str, chart: Chart, data: Sequence[Mapping[str, object]], share: bool, note: str, about: str) -> str:
    keys = (f'<span class="key"><i class="b{line["c"]}"></i>{escape(str(line["name"]))}</span>' for line in data)
    legend = f'<div class="legend">{"".join(keys)}</div>' if len(data) > 1 else ""
    aside = f'<span class="note">{escape(note)}</span>' if note else ""
    scales = {
        "data-x": json.dumps([chart.x.low, chart.x.high, chart.x.start, chart.x.end, 0]),
        "data-y": json.dumps([chart.y.low, chart.y.high, chart.y.start, chart.y.end, int(chart.y.log)]),
        "data-share": str(int(share)),
        "data-series": json.dumps(data, ensure_ascii=False, separators=(",", ":")),
    }
    size = {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "role": "img", "tabindex": "0", "aria-label": f"{title}. {_described(data, share)}"}
    picture = element("svg", "".join(chart.parts), **size, **scales)
    return f'<figure class="chart"><figcaption>{explained(title, about)}{aside}</figcaption>{legend}{picture}</figure>'


def _described(data: Sequence[Mapping[str, object]], share: bool) -> str:
    """Return the first and last value of each line as text, for screen readers; at most 12 lines. `data`: entries of `data-series`.
    `share`: True to show the values in per cent."""

    def show(value: float) -> str:
        return f"{100 * value:.1f} %" if share else f"{value:.4g}"

    parts = []
    for line in data[:12]:
        points: Points = line["p"]  # type: ignore[assignment]
        parts.append(
            f"{line['name']}: {show(points[0][1])} at step {points[0][0]:,.0f}, {show(points[-1][1])} at step {points[-1][0]:,.0f}"
        )
    return "; ".join(parts) + ("; and more" if len(data) > 12 else "")
