"""Make the section about the incidents of a run: cause of its end, skipped updates, alarms, logged warnings, quarantined records, excluded
data rows and restarts.
"""

import re
from collections import Counter
from html import escape

from linnaeus.errors import counted
from linnaeus.files import read_json
from linnaeus.reporting.report.html_parts import Column, folded, table, text_cell
from linnaeus.reporting.report.run_files import RunFiles

MOST = 200  # most entries shown of each kind
LISTED = 5  # most items shown of a list, such as the samples of an alarm
_LINE = re.compile(r"^(\S+ \S+) (WARNING|ERROR|CRITICAL) (.*)$")


def incidents(run: RunFiles) -> str:
    """Return the HTML of the section of report.html about incidents: error or reason of the end, skipped updates, alarms, warnings,
    quarantined records, excluded data rows and restarts. Without incidents, return a sentence that says so."""
    parts = [_end(run), _skipped(run), _alarms(run), _warnings(run), _quarantine(run), _left_out(run), _launches(run)]
    found = "".join(parts)
    return found or '<p class="empty">No alarms, no warnings, no quarantined records, no restarts.</p>'


def _end(run: RunFiles) -> str:
    if run.status == "killed":
        return "<p><strong>killed:</strong> the process has ended without writing a result; the same command continues.</p>"
    reason = next((run.summary[name] for name in ("error", "interrupted_by", "stop_reason") if run.summary.get(name)), "")
    reason = reason if run.ended else ""  # otherwise it is that of the launch before
    return f"<p><strong>{escape(run.status.replace('_', ' '))}:</strong> {escape(str(reason))}</p>" if reason else ""


def _skipped(run: RunFiles) -> str:
    curve = run.metrics.get("train/skipped_updates")
    skipped = int(curve.last[1]) if curve is not None and curve.count else 0
    return f"<p>{counted(skipped, 'update')} skipped because the loss or a gradient was not finite.</p>" if skipped else ""


def _alarms(run: RunFiles) -> str:
    """Return an HTML table of the alarms of the health checks, from alarms.jsonl: the first `MOST`; "" without alarms."""
    rows = run.lines("alarms.jsonl")
    if not rows:
        return ""
    columns = [
        name for name in dict.fromkeys(key for row in rows for key in row) if any(row.get(name) not in (None, [], "") for row in rows)
    ]
    cells = [[text_cell(_shown(row.get(name, ""))) for name in columns] for row in rows[:MOST]]
    shown = f", the first {MOST}" if len(rows) > MOST else ""
    return table(counted(len(rows), "alarm") + shown, [Column(name.replace("_", " "), words=True) for name in columns], cells)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, list):
        return ", ".join(map(str, value[:LISTED])) + (f" and {len(value) - LISTED} more" if len(value) > LISTED else "")
    return "" if value is None else str(value)


def _warnings(run: RunFiles) -> str:
    """Return an HTML list of the warnings and errors in train.log, at most `MOST`; "" if there are none.

    Equal messages are listed once, with the time of the first and the number of occurrences."""
    lines = [match for line in run.text("train.log").splitlines() if (match := _LINE.match(line))]
    times = Counter((match[2], match[3]) for match in lines)
    first = {(match[2], match[3]): match[1] for match in reversed(lines)}
    items = [
        f'<li><span class="status {"warning" if level == "WARNING" else "error"}">{level.lower()}</span>{escape(text)} '
        f'<span class="note">{escape(first[level, text])}{f", {count} times" if count > 1 else ""}</span></li>'
        for (level, text), count in list(times.items())[:MOST]
    ]
    shown = f": {MOST} of {len(times):,}" if len(times) > MOST else ""
    return f'<h3>Warnings in train.log{shown}</h3><ul class="log">{"".join(items)}</ul>' if items else ""


def _quarantine(run: RunFiles) -> str:
    rows = run.lines("quarantine.jsonl")
    cells = [[text_cell(str(row.get("id", ""))), text_cell(str(row.get("reason", "")))] for row in rows[:MOST]]
    shown = f", the first {MOST}" if len(rows) > MOST else ""
    title = f"{counted(len(rows), 'record')} in quarantine (not readable, not used){shown}"
    return table(title, [Column("record", words=True), Column("reason", words=True)], cells, shown=10)


def _left_out(run: RunFiles) -> str:
    """Return an HTML table of excluded data rows, from dataset.json: a reason and the number of rows for each line. Return "" if there are
    none."""
    excluded = (read_json(run.path / "dataset.json") or {}).get("excluded")
    if not isinstance(excluded, dict) or not excluded:
        return ""
    cells = [[text_cell(str(reason)), text_cell(f"{number:,}")] for reason, number in excluded.items()]
    return table("Excluded rows of the data", [Column("reason", words=True), Column("rows")], cells)


def _launches(run: RunFiles) -> str:
    """Return an HTML table with a row per launch (process start) of the run: time, host, number of processes, commit, and changed
    configuration.

    Return "" for fewer than two launches."""
    paths = sorted((p for p in run.path.glob("launches/*/launch.json") if p.parent.name.isdecimal()), key=lambda p: int(p.parent.name))
    records = [(path, read_json(path) or {}) for path in paths]
    if len(records) < 2:
        return ""
    rows = []
    for path, record in records:
        moved = path.with_name("moved.txt")
        changes = record.get("changes") or (moved.read_text(encoding="utf-8", errors="replace").splitlines()[:1] if moved.is_file() else [])
        texts = [path.parent.name, str(record.get("started", ""))[:16].replace("T", " "), str(record.get("host", ""))]
        texts += [str(record.get("world_size", "")), str(record.get("commit", ""))[:10], "; ".join(map(str, changes))]
        rows.append([text_cell(text) for text in texts])
    names = ("start", "time", "host", "processes", "commit", "changes")
    return folded(f"{len(records)} starts", table("Starts of the run", [Column(n, words=n == "changes") for n in names], rows), open_=True)
