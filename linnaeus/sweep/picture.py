"""Draw sweep.svg: the metric of the trials over the values of each swept parameter, one panel per parameter.

Each trial is a point, the best trial in another colour. A bar shows the mean over trials that have the same value of the parameter."""

import math
from collections.abc import Sequence
from statistics import fmean

from linnaeus.reporting.charts import BLUE, INK, LETTER, SKY, VERMILION, Chart, Scale, document
from linnaeus.reporting.formatting import format_tick, format_value, shorten
from linnaeus.sweep.parameters import Parameter
from linnaeus.sweep.trial import short_value
from linnaeus.sweep.trial_source import TrialSource

WIDTH, HEIGHT, COLUMNS = 460, 300, 2  # size of a panel with its axes in pixels; panels in a row
LEFT, RIGHT, TOP, BOTTOM, HEAD = 66, 22, 18, 56, 52
LOG_RATIO = 20.0  # ratio of the largest to the smallest positive value from which an axis is logarithmic
MAX_VALUES = 8  # numbers that are labelled one by one; more get round ticks


def sweep_picture(parameters: Sequence[Parameter], source: TrialSource) -> str | None:
    """Return the picture as SVG text; None if there is no parameter, or no trial with a value of the metric."""
    measured = [(trial, result.value) for trial, result in source.ranking() if result.value is not None]
    if not measured or not parameters:
        return None
    columns = min(COLUMNS, len(parameters))
    panels = []
    for i, p in enumerate(parameters):
        points = [(trial.values[p.key], value) for trial, value in measured]
        panels.append(_panel(p, points, i % columns * WIDTH, HEAD + i // columns * HEIGHT))
    panels[0].text(20, 26, source.metric.name, colour=INK, font_size="16", font_weight="bold")
    best = f"best: trial {measured[0][0].number}, {short_value(repr(measured[0][1]))}"
    panels[0].text(20, 46, best, colour=VERMILION)
    height = HEAD + math.ceil(len(parameters) / columns) * HEIGHT
    return document(columns * WIDTH, height, (part for panel in panels for part in panel.parts))


def _panel(p: Parameter, points: Sequence[tuple[str, float]], left: float, top: float) -> Chart:
    """Return the panel of one parameter. `points` are (value of the parameter, metric), the best one first; `left`, `top` are in pixels."""
    start, end, texts = left + LEFT, left + WIDTH - RIGHT, list(dict.fromkeys(text for text, _ in points))
    place = {text: number for text in texts if math.isfinite(number := _number(text))}
    if len(place) == len(texts):
        found = sorted(set(place.values()))
        log = bool(p.interval and p.interval.log) or (found[0] > 0 and found[-1] / found[0] >= LOG_RATIO)
        x = Scale.around(found, start, end, log)
        labels = {tick: format_tick(tick) for tick in (found if len(found) <= MAX_VALUES else x.ticks(6))}
    else:
        place = {text: i + 0.5 for i, text in enumerate(text for text in p.choices or sorted(texts) if text in texts)}
        x = Scale(0, len(place), start, end)
        labels = {i: shorten(text, int((end - start) / len(place) / LETTER) - 1) for text, i in place.items()}
    chart = Chart(x, Scale.around([y for _, y in points], top + HEIGHT - BOTTOM, top + TOP, margin=0.06))
    chart.y_axis({tick: format_value(tick) for tick in chart.y.ticks(7)})
    chart.x_axis(labels)
    chart.text((start + end) / 2, top + HEIGHT - BOTTOM + 38, f"{p.key} (logarithmic)" if x.log else p.key, "middle", INK)
    for text in texts:
        if len(shared := [y for other, y in points if other == text]) > 1:
            middle, y = x(place[text]), chart.y(fmean(shared))
            chart.line(middle - 13, y, middle + 13, y, SKY, stroke_width=4, stroke_linecap="round")
    for i, (text, y) in reversed(list(enumerate(points))):
        colour, radius = (BLUE, 4) if i else (VERMILION, 5.5)
        chart.dot(place[text], y, colour, radius=radius, title=f"{p.key}={text}: {y:.6g}")
    return chart


def _number(text: str) -> float:
    """Return `text` as a number, or NaN if it is not one."""
    try:
        return float(text)
    except ValueError:
        return math.nan
