"""report.html: the run as a page a person would rather look at, made from the files of its directory alone.

Self-contained: no request leaves the page, so it can be mailed. Missing or short files make a shorter page, never an error, so
the report of an interrupted run can be written at any time.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from linnaeus.files import write_atomic
from linnaeus.reporting.charts import Series, line_chart, short, smooth
from linnaeus.reporting.metric_tables import column_name, final_tables, passes_and_tasks, show_value
from linnaeus.reporting.page import page
from linnaeus.reporting.rows import read_rows

Rows = list[dict[str, Any]]


def write_report(run_dir: Path | str, title: str, sections: Sequence[tuple[str, str]] = ()) -> Path:
    """Write `run_dir/report.html` and return its path. `sections`: (title, HTML) of the workload, which vouches for its HTML."""
    run_dir = Path(run_dir)
    metrics, timings = read_rows(run_dir / "metrics.jsonl"), read_rows(run_dir / "timings.jsonl")
    summary, record = _json(run_dir / "summary.json"), _json(run_dir / "run.json")
    final = summary.get("final") or {}
    parts = [_header(title, summary, record), _hero(summary, final, metrics)]
    charts = "".join(_charts(metrics, timings, final))
    parts.append(_section("Curves", f'<div class="charts">{charts}</div>' if charts else _empty("No rows were logged yet.")))
    parts.append(_section("Final metrics", final_tables(final) or _empty("No validation has ended yet.")))
    parts += [_section(name, body) for name, body in sections]
    parts.append(_picture(run_dir / "schedule.svg"))
    parts.append(_folded("Configuration", _text(run_dir / "config.yaml")) + _folded("Run record", _text(run_dir / "run.json")))
    path = run_dir / "report.html"
    write_atomic(path, page(title, "\n".join(part for part in parts if part)))
    return path


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _section(title: str, body: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>{body}</section>"


def _empty(text: str) -> str:
    return f'<p class="empty">{html.escape(text)}</p>'


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{html.escape(title)}</summary><pre>{html.escape(text)}</pre></details>" if text else ""


def _header(title: str, summary: dict[str, Any], record: dict[str, Any]) -> str:
    status = summary.get("status", "running")
    facts = [
        f"run <code>{html.escape(str(record['run_id']))}</code>" if "run_id" in record else "",
        f"begun {html.escape(str(record['created'])[:16].replace('T', ' '))}" if "created" in record else "",
        f"commit <code>{html.escape(str(record['commit'])[:10])}</code>" if record.get("commit") else "",
        _devices(record),
        f"torch {html.escape(record['packages']['torch'])}" if record.get("packages", {}).get("torch") else "",
    ]
    line = " · ".join(fact for fact in facts if fact)
    mark = f'<span class="status {html.escape(status)}">{html.escape(status.replace("_", " "))}</span>'
    return f'<header><h1>{html.escape(title)}</h1><p class="sub">{mark}{line}</p></header>'


def _devices(record: dict[str, Any]) -> str:
    devices, world = record.get("devices"), record.get("world_size")
    if isinstance(devices, list):
        names = sorted(set(map(str, devices)))
        devices = ", ".join(f"{devices.count(n)} x {n}" if devices.count(n) > 1 else n for n in names)
    text = " on ".join(str(part) for part in (f"{world} processes" if world and world > 1 else "", devices or "") if part)
    return html.escape(text)


def _hero(summary: dict[str, Any], final: dict[str, Any], metrics: Rows) -> str:
    """The few numbers that say how the run went."""
    passes, tasks = passes_and_tasks(final)
    cards: list[tuple[str, str, str]] = []
    for task in reversed(tasks):  # the finest rank first
        value = final.get(f"{passes[0]}/{task}/top1") if passes else None
        if value is not None and len(cards) < 2:
            cards.append((show_value("top1", value), f"{task} top-1", "final validation"))
    loss = final.get(f"{passes[0]}/loss") if passes else None
    if loss is not None:
        cards.append((show_value("loss", loss), "validation loss", _best(summary)))
    step = summary.get("global_step", metrics[-1]["global_step"] if metrics else None)
    if step is not None:
        cards.append((f"{step:,}", "updates", ""))
    if summary.get("wall_seconds") is not None:
        cards.append((duration(summary["wall_seconds"]), "wall time", "all starts of the run"))
    if summary.get("samples_per_second") is not None:
        cards.append((f"{summary['samples_per_second']:,.0f}", "samples per second", "training"))
    boxes = "".join(f"<div><b>{v}</b><span>{html.escape(name)}</span><small>{html.escape(note)}</small></div>" for v, name, note in cards)
    return f'<div class="hero">{boxes}</div>' if boxes else ""


def _best(summary: dict[str, Any]) -> str:
    """`best val/loss 0.91 at step 800`, from `{monitor: {value, global_step}}`."""
    for monitor, best in (summary.get("best") or {}).items():
        if isinstance(best, dict) and best.get("value") is not None:
            return f"best {monitor} {show_value(monitor.rpartition('/')[2], best['value'])} at step {best.get('global_step', 0):,}"
    return ""


def points(rows: Rows, key: str) -> list[tuple[float, float]]:
    """(global_step, value) of the rows that have a number under `key`."""
    return [(row["global_step"], float(row[key])) for row in rows if isinstance(row.get(key), (int, float))]


def _matching(rows: Rows, pattern: str) -> dict[str, list[tuple[float, float]]]:
    """Name (first group of the pattern) -> points, for every key of the rows that matches; in order of first appearance."""
    names: dict[str, str] = {}
    for row in rows:
        for key in row:
            if key not in names and (match := re.fullmatch(pattern, key)):
                names[key] = match[1]
    return {name: points(rows, key) for key, name in names.items()}


def _charts(metrics: Rows, timings: Rows, final: dict[str, Any]) -> list[str]:
    passes, tasks = passes_and_tasks(final or {k: v for row in metrics for k, v in row.items()})
    normal = passes[0] if passes else "val"
    last = max((row["global_step"] for row in metrics), default=0)

    def chart(name: str, series: Sequence[Series], show: Callable[[float], str] = short, **more: Any) -> str:
        return line_chart(name, series, show, last=last, **more)

    def by_task(key: str) -> list[tuple[str, list[tuple[float, float]]]]:
        found = _matching(metrics, key)
        return [(task, found[task]) for task in [*tasks, *(name for name in found if name not in tasks)] if task in found]

    weights = by_task(r"train/([^/]+)/weight")
    weights_moved = any(len({value for _, value in p}) > 1 for _, p in weights)
    losses = [s for name, p in by_task(r"train/([^/]+)/loss") for s in _smoothed(name, p)]
    rates = [Series(name or "lr", p) for name, p in _matching(metrics, r"train/lr(?:/(.+))?").items()]
    speed = next(iter(_matching(timings, r"(?:.*/)?(samples_per_second)").values()), [])
    validation = Series("validation", points(metrics, f"{normal}/loss"), dots=True)
    top1, macro = ([Series(t, p, dots=True) for t, p in by_task(rf"{re.escape(normal)}/([^/]+)/{m}")] for m in ("top1", "macro"))
    return [
        chart("Loss", [*_smoothed("training", points(metrics, "train/loss")), validation]),
        chart("Top-1 accuracy", top1, _percent, note="validation"),
        chart("Macro accuracy", macro, _percent, note="validation, mean over classes"),
        chart(f"Top-1 accuracy of {tasks[-1]} by pass", _by_pass(metrics, tasks[-1], passes), _percent) if tasks else "",
        chart("Loss by task", losses, note="training"),
        chart("Learning rate", rates, _lr),
        chart("Task weights", [Series(t, p) for t, p in weights] if weights_moved else [], note="their sum is the number of tasks"),
        chart("Gradient norm", _smoothed("norm", points(metrics, "train/grad_norm")), log=True, note="before clipping"),
        chart("Throughput", [Series("samples/s", speed)], note="samples per second"),
    ]


def _smoothed(name: str, found: list[tuple[float, float]]) -> list[Series]:
    """A noisy line as its moving average over a faint background."""
    return [Series(name, found)] if len(found) <= 60 else [Series(name, found, faint=True), Series(name, smooth(found))]


def _by_pass(metrics: Rows, task: str, passes: Sequence[str]) -> list[Series]:
    """A task under every pass that was made more than once: what the metadata are worth over time."""
    found = [Series(column_name(name), points(metrics, f"{name}/{task}/top1"), dots=True) for name in passes]
    repeated = [series for series in found if len(series.points) > 1]
    return repeated if len(repeated) > 1 else []


def _percent(value: float) -> str:
    return f"{100 * value:.4g} %"


def _lr(value: float) -> str:
    return "0" if value == 0 else f"{value:.2g}"


def _picture(path: Path) -> str:
    """The schedule's SVG without its prologue (a document type would name an outside address)."""
    text = _text(path)
    start = text.find("<svg")
    return _section("Schedule", f'<div class="picture">{text[start:]}</div>') if start >= 0 else ""


def duration(seconds: float) -> str:
    """`48 s`, `12 min 05 s`, `3 h 20 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.0f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
