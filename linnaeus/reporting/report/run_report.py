"""Write report.html of a run, made from the files of the run directory and the sections of its workload.

    linnaeus report outputs/<experiment>/<run name> [--output FILE]

This command writes the page again, also for a run that was interrupted or is in progress. A missing or incomplete file is not an error: the
page lacks the parts that need the file. The page needs no other files and no network.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from linnaeus.checkpoint.format import step_name
from linnaeus.files import write_atomic
from linnaeus.reporting.formatting import format_duration
from linnaeus.reporting.report.configuration import configuration
from linnaeus.reporting.report.html_parts import Section, cards, empty, explained, number
from linnaeus.reporting.report.incidents import incidents
from linnaeus.reporting.report.line_chart import charts_of
from linnaeus.reporting.report.metric_names import last_part, meaning, metric_name, passes_and_tasks, show_value
from linnaeus.reporting.report.metric_tables import final_tables
from linnaeus.reporting.report.page import sections_page
from linnaeus.reporting.report.previous_best import previous_best
from linnaeus.reporting.report.run_charts import learning_charts, training_charts
from linnaeus.reporting.report.run_files import RunFiles
from linnaeus.reporting.report.time_breakdown import time_breakdown


def write_report(run: RunFiles, sections: Sequence[Section], path: Path | None = None, clean: Callable[[str], str] = str) -> Path:
    """Write the page of `run` and return its path. sections: sections of the workload. path: file of the page; None: report.html in the run
    directory. clean: function that removes secrets from the page."""
    path = path or run.path / "report.html"
    write_atomic(path, clean(report_page(run, sections)))
    return path


def report_page(run: RunFiles, sections: Sequence[Section]) -> str:
    """Return the HTML document of report.html. sections: sections of the workload."""
    lead = [section for section in sections if section.lead] or [Section.of("Summary", lambda: _key_figures(run), lead=True)]
    tables = Section.of("All metrics", lambda: _tables(run) or empty("No validation has finished yet."))
    parts = [
        *lead,
        Section.of("Curves", lambda: charts_of(learning_charts(run)) or empty("No rows have been logged yet.")),
        *(section for section in sections if not section.lead),
        Section(tables.title, tables.body, _ABOUT_METRICS if 'class="delta' in tables.body else ""),
        Section.of("Training", lambda: _picture(run) + charts_of(training_charts(run))),
        Section.of("Time", lambda: time_breakdown(run) or empty("No timings have been logged yet.")),
        Section.of("Incidents", lambda: incidents(run)),
        Section.of("Configuration", lambda: configuration(run)),
        Section.of("Glossary", lambda: glossary(run.final)),
    ]
    return sections_page(run.title, _header(run), [part for part in parts if part.body])


def _tables(run: RunFiles) -> str:
    return final_tables(run.final, run.table("baselines"), previous_best(run), run.differences)


_ABOUT_METRICS = (
    "Small numbers are 95 % intervals by the cluster bootstrap. A difference from the first column is coloured only if it is significant: "
    "if its paired interval excludes 0, or, for metrics without values by sample, if it exceeds the combined half-widths of both intervals."
)


def _header(run: RunFiles) -> str:
    record, status = run.record, run.status
    done = f"{run.step:,} of {run.total_steps:,} updates" if run.step is not None and run.total_steps else ""
    facts = [
        done,
        f"run <code>{escape(str(record['run_id']))}</code>" if "run_id" in record else "",
        f"started {escape(str(record['created'])[:16].replace('T', ' '))}" if "created" in record else "",
        f"commit <code>{escape(str(record['commit'])[:10])}</code>" if record.get("commit") else "",
        _devices(record),
        f"torch {escape(str(packages['torch']))}" if isinstance(packages := record.get("packages"), dict) and "torch" in packages else "",
    ]
    line = " · ".join(fact for fact in facts if fact)
    mark = f'<span class="status {escape(status)}">{escape(status.replace("_", " "))}</span>'
    return f'<header><h1>{escape(run.title)}</h1><p class="sub">{mark}{line}</p>{better_before(run)}</header>'


def _devices(record: Mapping[str, Any]) -> str:
    """Return the devices of a run as HTML, after the number of processes if there are several: `4 processes on 4 x NVIDIA H200`.

    If the devices or the number of processes are unknown, that part is left out; if both are unknown, return ""."""
    devices, world = record.get("devices"), record.get("world_size")
    if isinstance(devices, list):
        names = sorted(set(map(str, devices)))
        devices = ", ".join(f"{devices.count(n)} x {n}" if devices.count(n) > 1 else n for n in names)
    text = " on ".join(str(part) for part in (f"{world} processes" if isinstance(world, int) and world > 1 else "", devices or "") if part)
    return escape(text)


def _key_figures(run: RunFiles) -> str:
    """Return HTML cards with the main figures of a run: top-1 accuracy of the two finest tasks, validation loss, number of updates, wall
    time.

    Unknown figures are left out. The cards are the summary for a workload that has no section with `lead` True."""
    passes, tasks = passes_and_tasks(run.final)
    figures: list[tuple[str, str, str]] = []
    metrics = [*(f"{task}/top1" for task in tasks[:-3:-1]), "loss"] if passes else []
    keys = [f"{passes[0]}/{metric}" for metric in metrics]
    for key in keys:
        value = run.final.get(key)
        if value is not None:
            name = " ".join(filter(None, (key.split("/")[1] if key.count("/") == 2 else "", metric_name(key.rpartition("/")[2]).lower())))
            figures.append((number(key, value), explained(name, meaning(key)), "last validation"))
    if run.step is not None:
        figures.append((f"{run.step:,}", "updates", f"of {run.total_steps:,}" if run.total_steps else ""))
    wall = run.last_timings.get("time/wall_seconds")
    if wall is not None:
        figures.append((format_duration(wall), "wall time", "all starts of the run"))
    return cards(figures)


def better_before(run: RunFiles) -> str:
    """Return a paragraph that says when the monitored metric was better than in the last validation, and where that checkpoint is, as HTML.

    Return "" if the last value is the best, if both are shown with equal digits, or without values. After the end of a launch the best
    value is from summary.json, otherwise from metrics.jsonl."""
    monitor = run.monitor
    last, curve = run.final.get(monitor), run.metrics.get(monitor)
    found = run.summary["best"].get(monitor) if run.ended else None
    if found is not None:
        best, step = found["value"], found["global_step"]
    elif curve is not None and curve.count:
        mode = (run.config.get("schedule") or {}).get("best_mode", "min")
        step, best = (max if mode == "max" else min)(curve.points, key=lambda point: point[1])
    else:
        return ""
    if best is None or step is None or monitor not in run.final or show_value(monitor, best) == show_value(monitor, last):
        return ""
    name = " ".join(filter(None, (monitor.split("/")[1] if monitor.count("/") == 2 else "", metric_name(last_part(monitor)).lower())))
    folder = f"checkpoints/{step_name(int(step))}"
    kept = f" (saved: {folder})" if (run.path / folder).is_dir() else ""
    now = "not a number" if last is None else show_value(monitor, last)
    text = f"The validation {name} was {show_value(monitor, best)} at step {int(step):,}{kept}. In the last validation, shown here, "
    text += f"it is {now}."
    return f'<p class="sub"><span class="status warning">better before</span>{escape(text)}</p>'


def _picture(run: RunFiles) -> str:
    """Return schedule.svg of the run as HTML; "" if the file does not exist.

    Only the `<svg>` element is used, because the document type declaration contains a web address. For safety, return "" also if the
    picture contains an element that can run a script, set styles, link or load a file, such as `script`, `style`, `a` or `image`."""
    text = run.text("schedule.svg")
    start, end = text.find("<svg"), text.find("</svg>")
    if start < 0 or end < 0 or re.search(r"<(script|foreignobject|image|use|a|style|meta|iframe)\b", text, re.IGNORECASE):
        return ""
    picture = text[start:end].replace("<svg", '<svg role="img" aria-label="Schedule of the run; as text under Configuration"', 1)
    return f'<div class="picture" role="region" tabindex="0" aria-label="Schedule">{picture}</svg></div><br>'


def glossary(final: Mapping[str, Any]) -> str:
    """Return the metrics in `final` (metric key -> value) with their meanings as an HTML list; "" if no meaning is known."""
    names = {metric_name(key.rpartition("/")[2]): meaning(key) for key in final if not key.endswith(("_low", "_high"))}
    known = {name: text for name, text in names.items() if text}
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(text)}</dd>' for name, text in sorted(known.items()))}</dl>" if known else ""
