"""Draw the line charts of report.html (loss, accuracy, learning rate, ...) from the rows of metrics.jsonl and timings.jsonl.

Each chart is an SVG element with its points in the attribute `data-series`. The script of report.html reads them to show the values under
the mouse pointer. Without scripts the chart is a static picture.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import accumulate
from typing import Any

from linnaeus.reporting.charts import BLUE, Chart, Scale, element
from linnaeus.reporting.formatting import format_tick
from linnaeus.reporting.metric_tables import column_name, passes_and_tasks

WIDTH, HEIGHT = 560, 260
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 34
MAX_POINTS = 400  # per line; more points would only thicken the line
MAX_DOTS = 60  # a line of at most this many points has a dot for each and is not smoothed
CLASSES = 8  # s0 to s7 of the style sheet, one colour each

Rows = Sequence[Mapping[str, Any]]
Points = list[tuple[float, float]]  # (global_step, value)


def run_charts(metrics: Rows, timings: Rows, final: Mapping[str, Any]) -> list[str]:
    """Return the charts of a run as HTML figures, leaving out those without points. `final`: the last value of each validation metric; the
    order of its keys is the order of the tasks."""
    passes, tasks = passes_and_tasks(final or {key: None for row in metrics for key in row})
    normal = passes[0] if passes else "val"
    last = max((row["global_step"] for row in metrics), default=0)

    def by_task(metric: str, of: str = "train") -> dict[str, Points]:
        found = matching(metrics, rf"{re.escape(of)}/([^/]+)/{metric}")
        return {task: found[task] for task in [*tasks, *found] if task in found}

    finest = tasks[-1] if tasks else ""
    loss = {"training": points(metrics, "train/loss"), "validation": points(metrics, f"{normal}/loss")}
    by_pass = {column_name(name): points(metrics, f"{name}/{finest}/top1") for name in passes}
    by_pass = {name: found for name, found in by_pass.items() if len(found) > 1}  # some passes are made at the end only
    rates = {name or "lr": found for name, found in matching(metrics, r"train/lr(?:/(.+))?").items()}
    weights = by_task("weight")
    moving = any(len({value for _, value in found}) > 1 for found in weights.values())
    norm = {"norm": points(metrics, "train/grad_norm")}
    speed = dict(list(matching(timings, r"(?:.*/)?(samples_per_second)").items())[:1])

    def share(value: float) -> str:
        return f"{100 * value:.4g} %"

    charts = [
        line_chart("Loss", loss, last=last, smoothed=True),
        line_chart("Top-1 accuracy", by_task("top1", normal), share, last, note="validation"),
        line_chart("Macro accuracy", by_task("macro_top1", normal), share, last, note="validation, mean over classes"),
        line_chart(f"Top-1 accuracy of {finest} by pass", by_pass if len(by_pass) > 1 else {}, share, last),
        line_chart("Loss by task", by_task("loss"), last=last, smoothed=True, note="training"),
        line_chart("Learning rate", rates, last=last),
        line_chart("Task weights", weights if moving else {}, last=last, note="their sum is the number of tasks"),
        line_chart("Gradient norm", norm, last=last, smoothed=True, log=True, note="before clipping"),
        line_chart("Throughput", speed, last=last, note="samples per second"),
    ]
    return [chart for chart in charts if chart]


# -- from rows to points -------------------------------------------------------------------------------------------------------


def points(rows: Rows, key: str) -> Points:
    """Return (global_step, value) of the rows that have a finite number under `key`."""
    found = ((row["global_step"], row.get(key)) for row in rows)
    return [(step, float(value)) for step, value in found if isinstance(value, (int, float)) and math.isfinite(value)]


def matching(rows: Rows, pattern: str) -> dict[str, Points]:
    """Return the points of every key of the rows that `pattern` matches. The text of the pattern's first group is the key of the result.
    Keys are in order of first appearance."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return {match[1]: points(rows, key) for key in keys if (match := re.fullmatch(pattern, key))}


def thin(found: Points) -> Points:
    """Return about `MAX_POINTS` of the points: the lowest and the highest of each bucket, so that spikes stay visible, and the first and
    the last point."""
    if len(found) <= MAX_POINTS:
        return found
    size = math.ceil(len(found) / (MAX_POINTS // 2))
    kept = {0, len(found) - 1}
    for start in range(0, len(found), size):
        bucket = range(start, min(start + size, len(found)))
        kept |= {min(bucket, key=lambda i: found[i][1]), max(bucket, key=lambda i: found[i][1])}
    return [found[i] for i in sorted(kept)]


def smooth(found: Points, span: float = 0.04) -> Points:
    """Return the moving average of the points. The window contains the fraction `span` of the points, and is centred so that the line does
    not lag. It is narrower near both ends."""
    half, sums, means = max(1, round(span * len(found) / 2)), [0.0, *accumulate(y for _, y in found)], []
    for i, (x, _) in enumerate(found):
        reach = min(half, i, len(found) - 1 - i)
        means.append((x, (sums[i + reach + 1] - sums[i - reach]) / (2 * reach + 1)))
    return means


# -- drawing -------------------------------------------------------------------------------------------------------------------


def line_chart(
    title: str,
    lines: Mapping[str, Points],
    show: Callable[[float], str] = format_tick,
    last: float = 0.0,
    smoothed: bool = False,
    log: bool = False,
    note: str = "",
) -> str:
    """Return an HTML figure of `lines` (name -> points); "" if no line has a point. `show` formats values of y. The x axis ends at the
    greater of `last` and the last point. `log`: logarithmic y axis. `note`: text beside the title.

    With `smoothed`, a line of more than `MAX_DOTS` points is drawn as its moving average over the faint line itself."""
    if log:
        lines = {name: [(x, y) for x, y in found if y > 0] for name, found in lines.items()}
    lines = {name: found for name, found in lines.items() if found}
    if not lines:
        return ""
    x = Scale(0.0, max(last, 1.0, *(x for found in lines.values() for x, _ in found)), LEFT, WIDTH - RIGHT)
    chart = Chart(x, Scale.around([y for found in lines.values() for _, y in found], HEIGHT - BOTTOM, TOP, log))
    chart.y_axis({tick: show(tick) for tick in chart.y.ticks(6)})
    chart.x_axis({tick: format_tick(tick) for tick in x.ticks(6)}, above=-16)
    chart.text(WIDTH - RIGHT, HEIGHT - 4, "step", "end")
    data = []
    for number, (name, found) in enumerate(lines.items()):
        colour = f"s{number % CLASSES}"
        dots = found if len(found) <= MAX_DOTS else []
        measured = thin(found)  # shown under the pointer, whether the line is smoothed or not
        if smoothed and not dots:
            chart.curve(measured, BLUE, f"{colour} faint")
            found = smooth(found)
        chart.curve(thin(found), BLUE, colour)
        for point in dots:
            chart.dot(*point, BLUE, colour)
        data.append({"name": name, "c": number % CLASSES, "p": [[x, round(chart.x(x), 1), show(y)] for x, y in measured]})
    keys = (f'<span class="key"><i class="b{line["c"]}"></i>{escape(str(line["name"]))}</span>' for line in data)
    legend = "".join(keys) if len(data) > 1 else ""
    aside = f'<span class="note">{escape(note)}</span>' if note else ""
    size = {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "role": "img", "aria-label": title, "data-series": json.dumps(data)}
    picture = element("svg", "".join(chart.parts), **size)
    return f'<figure><figcaption>{escape(title)}{aside}</figcaption><div class="legend">{legend}</div>{picture}</figure>'
