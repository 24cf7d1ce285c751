"""Write the results of a run: summary.json for programs, and report.html, one page made from the files of the run directory alone.

    linnaeus report outputs/<experiment>/<run name>

This command writes the page again, also for a run that was interrupted or is in progress. If a file is missing or short, the page is
shorter; this is not an error. The page makes no network request, so it can be sent by mail.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from linnaeus.errors import ConfigError
from linnaeus.files import read_json, to_json, write_atomic
from linnaeus.reporting.curves import run_charts
from linnaeus.reporting.formatting import format_duration
from linnaeus.reporting.metric_tables import final_tables, passes_and_tasks, show_value
from linnaeus.reporting.page import page
from linnaeus.reporting.rows import read_rows

FIRST, LAST = "<!-- sections of the workload -->", "<!-- end of the sections of the workload -->"
STATUSES = ("running", "finished", "stopped_early", "interrupted", "failed")
DEFAULTS: dict[str, Any] = {"best": {}, "final": {}, "samples_per_second": None, "wall_seconds": None}


def write_summary(path: Path | str, status: str, global_step: int, **values: Any) -> None:
    """Write summary.json to `path`. It is called at each change of the status. NaN and infinities become null.

    In `values`, `best` is `{monitor: {value, global_step}}`, `final` contains metrics such as `val/species/top1`, and `wall_seconds` is the
    time of all launches."""
    assert status in STATUSES, status
    content = {"status": status, "global_step": global_step} | DEFAULTS | values
    write_atomic(path, to_json(strict(content)))


def strict(value: Any) -> Any:
    """Return a copy of `value` in which NaN and infinities are None, since JSON does not have them."""
    if isinstance(value, Mapping):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# -- report.html ----------------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Write report.html of each run directory in `arguments` and print its path. Return the exit status; an error ends the program with
    one line and status 2."""
    from linnaeus.config.messages import user_errors

    parser = argparse.ArgumentParser(prog="linnaeus report", description="Write report.html of runs from the files in their directories.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run directory, such as outputs/biota/1a2b3c4d5e")
    with user_errors(2):
        for run in parser.parse_args(arguments).runs:
            if not (run / "run.json").exists():
                raise ConfigError(f"{run} is not a run directory: it has no run.json; give a folder such as outputs/biota/1a2b3c4d5e")
            try:
                print(write_report(run))
            except OSError as error:
                raise ConfigError(f"{run / 'report.html'} cannot be written ({error.strerror or error})") from None
    return 0


def write_report(run_dir: Path | str, title: str | None = None, sections: Sequence[tuple[str, str]] | None = None) -> Path:
    """Write `run_dir`/report.html and return its path.

    `title` is `experiment / name` by default. `sections` are pairs (title, HTML) from the workload, inserted without escaping; None keeps
    the sections of the page that exists."""
    run_dir = Path(run_dir)
    path = run_dir / "report.html"
    title = title or " / ".join(run_dir.resolve().parts[-2:])
    kept = _text(path).partition(FIRST)[2].partition(LAST)[0]
    own = kept if sections is None else "".join(_section(name, body) for name, body in sections)
    metrics, timings = read_rows(run_dir / "metrics.jsonl"), read_rows(run_dir / "timings.jsonl")
    summary, record = _json(run_dir / "summary.json"), _json(run_dir / "run.json")
    final = summary.get("final") or {}
    charts = "".join(run_charts(metrics, timings, final))
    parts = [
        _header(title, summary, record),
        _key_figures(summary, final, metrics),
        _section("Curves", f'<div class="charts">{charts}</div>' if charts else _empty("No rows have been logged yet.")),
        _section("Final metrics", final_tables(final) or _empty("No validation has finished yet.")),
        FIRST + own + LAST,
        _picture(run_dir / "schedule.svg"),
        _folded("Configuration", _text(run_dir / "config.yaml")) + _folded("Run record", _text(run_dir / "run.json")),
    ]
    write_atomic(path, page(title, "\n".join(part for part in parts if part)))
    return path


def _json(path: Path) -> dict[str, Any]:
    return read_json(path) or {}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _empty(text: str) -> str:
    return f'<p class="empty">{escape(text)}</p>'


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>" if text else ""


def _header(title: str, summary: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    status = summary.get("status", "running")
    facts = [
        f"run <code>{escape(str(record['run_id']))}</code>" if "run_id" in record else "",
        f"started {escape(str(record['created'])[:16].replace('T', ' '))}" if "created" in record else "",
        f"commit <code>{escape(str(record['commit'])[:10])}</code>" if record.get("commit") else "",
        _devices(record),
        f"torch {escape(record['packages']['torch'])}" if record.get("packages", {}).get("torch") else "",
    ]
    line = " · ".join(fact for fact in facts if fact)
    mark = f'<span class="status {escape(status)}">{escape(status.replace("_", " "))}</span>'
    return f'<header><h1>{escape(title)}</h1><p class="sub">{mark}{line}</p></header>'


def _devices(record: Mapping[str, Any]) -> str:
    """Return the processes and devices of a run as text, such as `4 processes on 4 x NVIDIA H200`."""
    devices, world = record.get("devices"), record.get("world_size")
    if isinstance(devices, list):
        names = sorted(set(map(str, devices)))
        devices = ", ".join(f"{devices.count(n)} x {n}" if devices.count(n) > 1 else n for n in names)
    text = " on ".join(str(part) for part in (f"{world} processes" if world and world > 1 else "", devices or "") if part)
    return escape(text)


def _key_figures(summary: Mapping[str, Any], final: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> str:
    """Return cards with the main figures of a run: the accuracies of the two finest tasks, the validation loss, the number of updates, the
    time, the speed, and how many times as fast training would be if it never waited for data."""
    passes, tasks = passes_and_tasks(final)
    cards: list[tuple[str, str, str]] = []
    for task in reversed(tasks):  # the finest rank is the last one
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
        cards.append((format_duration(summary["wall_seconds"]), "wall time", "all starts of the run"))
    if summary.get("samples_per_second") is not None:
        cards.append((f"{summary['samples_per_second']:,.0f}", "samples per second", "training"))
    speed = (summary.get("timings") or {}).get("time/speed_without_waiting")
    if speed is not None:
        cards.append((f"{speed:.3g} x", "speed if data cost no time", "training, last start"))
    boxes = "".join(f"<div><b>{value}</b><span>{escape(name)}</span><small>{escape(note)}</small></div>" for value, name, note in cards)
    return f'<div class="hero">{boxes}</div>' if boxes else ""


def _best(summary: Mapping[str, Any]) -> str:
    """Return the best value of the monitored metric as text, such as `best val/loss 0.91 at step 800`; "" if there is none."""
    for monitor, best in (summary.get("best") or {}).items():
        if isinstance(best, dict) and best.get("value") is not None:
            return f"best {monitor} {show_value(monitor.rpartition('/')[2], best['value'])} at step {best.get('global_step', 0):,}"
    return ""


def _picture(path: Path) -> str:
    """Return the section with the SVG file `path`; "" if it does not exist. Text before the `<svg>` element is left out, because the
    document type declaration of an SVG file contains a web address."""
    text = _text(path)
    start = text.find("<svg")
    return _section("Schedule", f'<div class="picture">{text[start:]}</div>') if start >= 0 else ""


if __name__ == "__main__":
    raise SystemExit(main())
