"""Make the section about the time of a run: the parts of the time as a bar and a table, and the speed of training."""

from collections.abc import Sequence
from html import escape

from linnaeus.reporting.formatting import format_duration, format_rate
from linnaeus.reporting.performance.throughput import peak_flops, unknown_peak
from linnaeus.reporting.report.html_parts import Cell, Column, cards, share_cell, table, text_cell
from linnaeus.reporting.report.line_chart import charts_of
from linnaeus.reporting.report.run_charts import speed_charts
from linnaeus.reporting.report.run_files import RunFiles

# Part of `time/<part>_seconds` -> (name, meaning)
PARTS = {
    "startup": ("start-up", "Imports, data and model, until the first update."),
    "compiling": ("compiling", "Compilation of the model, in the first updates."),
    "computing": ("training", "Updates, without waiting for data."),
    "waiting": ("waiting for data", "The loader has no batch ready."),
    "validation": ("validation", "All validation passes."),
    "saving": ("saving", "Copies of checkpoints to host memory; files are written during training."),
    "reporting": ("reports", "Progress reports; not counted as training."),
    "unknown": ("not recorded", "Between the last report of a start and its last checkpoint, and starts without a report."),
}


def time_breakdown(run: RunFiles) -> str:
    """Return the HTML of the section of report.html about time: main figures, a bar and a table with the parts of all launches, and charts
    of the speed. Return "" without timings."""
    timings, launches = run.last_timings, run.launch_timings
    wall = timings.get("time/wall_seconds")
    parts = total_parts(launches, wall)
    figures = [(format_duration(wall), "wall time", "all starts of the run")] if wall is not None else []
    rate = timings.get("time/samples_per_second")
    if rate is not None:
        figures.append((f"{rate:,.0f}" if rate >= 100 else format_rate(rate), "samples per second", "training, last start"))
    milliseconds = timings.get("time/ms_per_step")
    if milliseconds is not None:
        figures.append((f"{milliseconds:.4g} ms", "per update", "mean of the last start"))
    for name, words in (("mfu", "model FLOPs utilisation"), ("hfu", "hardware FLOPs utilisation")):
        curve = run.timings.get(f"recent/{name}")
        if curve is not None and curve.count:
            figures.append((f"{100 * curve.last[1]:.1f} %", words, "of the peak of the device, last reports"))
    if timings and "recent/mfu" not in run.timings and (reason := unknown_utilisation(run)):
        figures.append(("unknown", "model FLOPs utilisation", escape(reason)))
    speed = timings.get("time/speed_without_waiting")
    if speed is not None:
        figures.append((f"{speed:.3g} x", "speed-up without waiting for data", "training, last start"))
    title = f"Time of all {len(launches)} starts" if len(launches) > 1 else "Time of the run"
    note = '<p class="sub">The time of updates that were lost with a killed start and made again is not counted.</p>'
    return cards(figures) + _bar(parts, title) + (note if len(launches) > 1 else "") + charts_of(speed_charts(run))


def total_parts(launches: Sequence[dict[str, float]], wall: float | None) -> dict[str, float]:
    """Return the seconds that all launches spent on each part: {key of `PARTS`: seconds}; {} without training time.

    launches: `RunFiles.launch_timings`. wall: wall time of the run in seconds; if the parts are shorter by more than 0.5 %, the difference
    is the part `unknown`. None: no such part."""
    each = [time_parts(timings) for timings in launches]
    total = {name: sum(parts.get(name, 0.0) for parts in each) for name in PARTS if any(name in parts for parts in each)}
    missing = (wall or 0.0) - sum(total.values())
    return total | ({"unknown": missing} if total and missing > 0.005 * (wall or 0.0) else {})


def unknown_utilisation(run: RunFiles) -> str:
    """Return the reason why the model FLOPs utilisation of the run is unknown; "" if the peak of its device is known."""
    device, precision = run.record.get("devices"), run.config.get("trainer", {}).get("precision")
    if not device or not precision or run.config.get("logger", {}).get("peak_tflops") is not None or peak_flops(device, precision):
        return ""
    return unknown_peak(device, precision)


def time_parts(timings: dict[str, float]) -> dict[str, float]:
    """Return the seconds that a launch spent on each part: {key of `PARTS`: seconds}; {} without training time.

    timings: last row of timings.jsonl of the launch. Parts that were not measured are left out. `time/training_seconds` includes waiting
    and reports, which are subtracted here, so that the parts add up to the time of the launch."""
    training = timings.get("time/training_seconds")
    if not training:
        return {}
    waiting = timings.get("time/waiting_seconds", timings.get("time/waiting_for_data", 0.0) * training)
    known = {name: timings[key] for name in PARTS if (key := f"time/{name}_seconds") in timings}
    computing = max(0.0, training - waiting - known.get("reporting", 0.0))
    return known | {"waiting": waiting, "computing": computing}


def _bar(parts: dict[str, float], title: str) -> str:
    total = sum(parts.values())
    if not total:
        return ""
    shown = [(number, name, parts[name]) for number, name in enumerate(PARTS) if name in parts]
    bar = "".join(f'<i class="b{number}" style="width:{100 * seconds / total:.2f}%"></i>' for number, _, seconds in shown)
    rows = [
        [
            Cell(f'<span class="key"><i class="b{number}"></i>{escape(PARTS[name][0])}</span>', PARTS[name][0]),
            Cell(f"{seconds:,.1f} s" if seconds < 600 else format_duration(seconds), seconds),
            share_cell(seconds / total),
            text_cell(PARTS[name][1]),
        ]
        for number, name, seconds in shown
    ]
    columns = [Column("part", words=True), Column("time"), Column("share"), Column("meaning", words=True)]
    return f'<div class="stack" aria-hidden="true">{bar}</div>' + table(title, columns, rows)
