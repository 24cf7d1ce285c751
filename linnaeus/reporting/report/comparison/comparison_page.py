"""Write comparison.html: several runs, or the runs of a sweep, on one page.

Runs that differ only in seed or fold form a group: one row with the mean and the standard deviation. The first group is the reference, and
the page shows the differences of the other groups from it. The differences have 95 % intervals if the tables of samples are saved, paired
by sample, or if the groups have several runs, from the variation over them.
"""

import math
import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from linnaeus.errors import counted
from linnaeus.files import write_atomic
from linnaeus.reporting.formatting import format_duration
from linnaeus.reporting.report.comparison.compared_runs import Compared, Group, same_data
from linnaeus.reporting.report.comparison.paired_rows import Difference, PairedRows
from linnaeus.reporting.report.comparison.pareto import Entry, pareto_chart
from linnaeus.reporting.report.downsampling import Curve
from linnaeus.reporting.report.html_parts import Cell, Column, Section, empty, number, table, text_cell
from linnaeus.reporting.report.line_chart import charts_of, line_chart
from linnaeus.reporting.report.metric_names import direction, is_share, meaning, metric_name, passes_and_tasks, show_value
from linnaeus.reporting.report.metric_tables import difference
from linnaeus.reporting.report.page import sections_page
from linnaeus.reporting.report.run_files import RunFiles
from linnaeus.rundir.finished_run import ENDED
from linnaeus.rundir.saved_run import COMPARISON

MOST_CURVES = 8  # groups in a chart
HEADLINE = 5  # columns of the first table


def comparison_path(arguments: Sequence[Path]) -> Path:
    """Return the default path of comparison.html: in the directory `arguments[0]` if there is only one argument, otherwise in the deepest
    directory that contains all `arguments`."""
    folder = arguments[0] if len(arguments) == 1 else Path(os.path.commonpath([path.resolve().parent for path in arguments]))
    return folder / COMPARISON


def write_comparison(runs: Sequence[RunFiles], path: Path) -> Path:
    """Write the HTML page that compares `runs` to the file `path`, and return `path`."""
    write_atomic(path, comparison_page(runs, path.resolve().parent))
    return path


def comparison_page(runs: Sequence[RunFiles], folder: Path) -> str:
    """Return the HTML document comparison.html. folder: directory of the page, to which links to report.html of each run are relative."""
    compared, pairs = Compared(runs), PairedRows()
    first = compared.groups[0]
    paired = any(pairs.table(run) is not None for run in first.runs)
    several = [len(first.runs) > 1 and len(group.runs) > 1 for group in compared.groups[1:]]
    about = f"Differences from {first.name}, 95 % intervals. " + _intervals_text(paired, several)
    sections = [
        Section(
            "Results", _results(compared) + _pareto(compared), "Mean of the seeds ± standard deviation. The best value is bold.", lead=True
        ),
        Section("Differences", _differences(compared, pairs), about),
        Section("Curves", _curves(compared)),
        Section("Configurations", _configurations(compared)),
        Section("Runs", _runs(compared, folder)),
    ]
    experiments = ", ".join(dict.fromkeys(run.path.resolve().parent.name for run in runs))
    groups = f" in {counted(len(compared.groups), 'configuration')}" if len(compared.groups) < len(runs) else ""
    warning = "" if same_data(runs) else '<span class="status warning">different data</span>The data of the runs differ. '
    facts = f"{warning}{_unfinished(runs)}{counted(len(runs), 'run')}{groups} · {escape(experiments)}"
    header = f'<header><h1>Comparison of {len(runs)} runs</h1><p class="sub">{facts}</p></header>'
    return sections_page(f"Comparison: {experiments}", header, [section for section in sections if section.body])


def _intervals_text(paired: bool, several: Sequence[bool]) -> str:
    """Return the text about the sources of the intervals. paired: the tables of samples are saved. several: for each group after the first,
    True if it and the first have several runs."""
    if not paired and not any(several):
        return "Only aggregate results are saved, so there are no paired intervals and nothing is coloured."
    found = "Paired by sample: both runs predict the same samples. " if paired else ""
    if any(several):
        alone = several.count(False)
        found += "They include the variation over the seeds"
        found += f", except in the {counted(alone, 'column')} of a single run. " if alone else ". "
    else:
        found += "They do not include the variation over seeds, which needs two runs or more of the reference and of the other. "
    return found + "A difference is coloured only if its interval excludes 0."


def _unfinished(runs: Sequence[RunFiles]) -> str:
    """Return a warning, as HTML, about the runs that have not finished; "" if all have."""
    number = sum(run.status not in ENDED for run in runs)
    if not number:
        return ""
    text = f"{counted(number, 'run')} of {len(runs)} did not finish; the tables have the newest values. "
    return f'<span class="status warning">unfinished</span>{text}'


def _headline(compared: Compared) -> list[str]:
    """Return the metric keys of the first table, at most `HEADLINE`: main metric, top-1 accuracies of the tasks (finest task first),
    losses, then other metrics over all tasks."""
    passes, tasks = passes_and_tasks({key: 0 for key in compared.metrics})
    wanted = [compared.main_metric]
    wanted += [f"{p}/{task}/top1" for p in passes for task in reversed(tasks)] + [f"{p}/loss" for p in passes]
    wanted += [key for key in compared.metrics if key.count("/") == 1]
    return [key for key in dict.fromkeys(wanted) if key in compared.metrics][:HEADLINE]


def _results(compared: Compared) -> str:
    keys = _headline(compared)
    best = {key: _best(compared, key) for key in keys}
    rows = []
    for group in compared.groups:
        mark = f' <span class="status warning">{escape(group.unfinished)}</span>' if group.unfinished else ""
        cells = [Cell(escape(group.name) + mark, group.name), Cell(str(len(group.runs)), len(group.runs))]
        cells += [_mean_cell(group, key, group.name == best[key]) for key in keys]
        cells.append(Cell(format_duration(group.seconds), group.seconds) if group.seconds else Cell("–"))
        rows.append(cells)
    columns = [Column("configuration", words=True), Column("runs", "Number of seeds.")]
    columns += [Column(_short_title(key), meaning(key)) for key in keys] + [Column("device time", _DEVICE_TIME)]
    return table("Results by configuration", columns, rows)


_DEVICE_TIME = "Time of the updates x processes, summed over all starts; mean over seeds."


def _title(key: str) -> str:
    parts = key.split("/")
    return metric_name(parts[-1]) if len(parts) == 2 else f"{parts[1]}: {metric_name(parts[-1]).lower()}"


def _short_title(key: str) -> str:
    """Return the title of a metric for a narrow column, such as `right species` for the key `val/species/top1`."""
    parts = key.split("/")
    return f"right {parts[1]}" if len(parts) == 3 and parts[2] == "top1" else _title(key)


def _best(compared: Compared, key: str) -> str | None:
    """Return the name of the group with the best mean of the metric `key`.

    Return None if neither a higher nor a lower value is better, or if fewer than two groups have a mean."""
    sign = direction(key)
    means = {group.name: mean for group in compared.groups if (mean := group.mean(key)) is not None}
    return max(means, key=lambda name: sign * means[name]) if sign and len(means) > 1 else None


def _mean_cell(group: Group, key: str, best: bool) -> Cell:
    mean, deviation = group.mean(key), group.deviation(key)
    if mean is None:
        return Cell("–")
    html = number(key, mean) if len(group.runs) == 1 else show_value(key, mean)
    spread = f' <span class="note">± {100 * deviation:.1f}</span>' if deviation is not None and is_share(key) else ""
    spread = spread or (f' <span class="note">± {deviation:.2g}</span>' if deviation is not None else "")
    return Cell((f"<b>{html}</b>" if best else html) + spread, mean)


def _pareto(compared: Compared) -> str:
    key = compared.main_metric
    entries = [
        Entry(group.name, group.seconds, mean, group.deviation(key), group.unfinished)
        for group in compared.groups
        if group.seconds and (mean := group.mean(key)) is not None
    ]
    return pareto_chart(key, entries)


def _differences(compared: Compared, pairs: PairedRows) -> str:
    """Return an HTML table with one row per metric: the value of the first group (the reference), then the difference of each other group
    from it.

    Metrics that are ends of intervals and the metrics `many`, `medium` and `few` are left out. With one group, return a message that all
    runs differ in their seed only."""
    first, *others = compared.groups
    if not others:
        return empty("All runs differ in their seed only.")
    paired: list[list[Cell]] = []
    rest: list[list[Cell]] = []
    for key in compared.metrics:
        if key.endswith(("_low", "_high")) or key.rpartition("/")[2] in ("many", "medium", "few"):
            continue
        found = [pairs.difference(first, other, key) for other in others]
        value = first.mean(key)
        row = [text_cell(_title(key)), Cell(show_value(key, value), value), *(_difference_cell(key, one) for one in found)]
        (paired if any(one is not None and one.samples for one in found) else rest).append(row)
    rows = [*paired, *rest]  # those with intervals first
    columns = [Column("metric", words=True), Column(first.name, "The reference.", words=True)]
    columns += [Column(group.name, "Difference from the reference, for fractions in percentage points.", words=True) for group in others]
    note = ""
    if len(others) > 1:
        note = f'<p class="sub">{counted(len(others), "comparison")} by metric: one in twenty intervals excludes 0 by chance.</p>'
    return table("Differences from the reference", columns, rows, shown=20, sortable=False) + note


def _difference_cell(key: str, found: Difference | None) -> Cell:
    if found is None:
        return Cell("–")
    html = difference(key, found.value, 0.0 if found.significant else math.inf)
    if not math.isnan(found.low):
        scale, form = (100, "+.1f") if is_share(key) else (1, "+.3g")
        html += f'<span class="interval">{scale * found.low:{form}} to {scale * found.high:{form}}</span>'
    if found.samples < found.of:
        there = show_value(key, found.reference)
        html += f'<span class="interval">over {found.samples:,} paired samples of {found.of:,}; the reference there: {there}</span>'
    return Cell(html, found.value)


def _curves(compared: Compared) -> str:
    groups = compared.groups[:MOST_CURVES]
    last = float(max((run.step or 0 for run in compared.runs), default=0))

    def lines(key: str) -> Mapping[str, Curve]:
        """Return {group name: curve of the metric `key` in the first run of the group}. A group whose first run lacks the metric is left
        out."""
        found = {group.name: group.runs[0].metrics.get(key) for group in groups}
        return {name: curve for name, curve in found.items() if curve is not None and curve.count}

    keys = ["train/loss", *_headline(compared)[:5], "train/grad_norm", "train/lr"]
    charts = [
        line_chart(
            _title(key) if key.startswith("val") else metric_name(key.partition("/")[2]),
            lines(key),
            last,
            smoothed=key.startswith("train"),
            log=key.endswith("grad_norm"),
            share=is_share(key),
            note="validation" if key.startswith("val") else "training",
        )
        for key in dict.fromkeys(keys)
    ]
    note = "" if len(compared.groups) <= MOST_CURVES else f'<p class="sub">The first {MOST_CURVES} configurations.</p>'
    note += '<p class="sub">Of several seeds, the first run is shown.</p>' if any(len(group.runs) > 1 for group in groups) else ""
    found = charts_of(charts)
    return note + found if found else ""


def _configurations(compared: Compared) -> str:
    """Return an HTML table of the configuration keys whose values differ between the runs: a row per key, a column per run.

    If no key differs, return a sentence that says so."""
    rows = []
    for key in compared.differing:
        values = [own.get(key, "–") for own in compared.configurations]
        rows.append([Cell(f"<code>{escape(key)}</code>", key), *(text_cell(value) for value in values)])
    columns = [Column("key", words=True), *(Column(run.path.name, words=True) for run in compared.runs)]
    return table("Keys that differ", columns, rows, shown=40) or empty("The configurations are equal.")


def _runs(compared: Compared, folder: Path) -> str:
    """Return an HTML table with a row per run: name, group, status, number of updates, wall time, commit and devices.

    The name is a link to report.html of the run, relative to `folder`, if this file exists."""
    rows = []
    for group in compared.groups:
        for run in group.runs:
            page = run.path.resolve() / "report.html"
            name = escape(run.path.name)
            link = f'<a href="{quote(os.path.relpath(page, folder))}">{name}</a>' if page.exists() else name
            status = f'<span class="status {escape(run.status)}">{escape(run.status.replace("_", " "))}</span>'
            wall = run.last_timings.get("time/wall_seconds")
            cells = [Cell(link, run.path.name), text_cell(group.name), Cell(status, run.status), Cell(f"{run.step or 0:,}", run.step or 0)]
            cells += [Cell(format_duration(wall), wall) if wall is not None else Cell("–")]
            cells += [text_cell(str(run.record.get("commit") or "")[:10]), text_cell(str(run.record.get("devices", "")))]
            rows.append(cells)
    names = ("run", "configuration", "status", "updates", "wall time", "commit", "devices")
    return table("Runs", [Column(name, words=name == "configuration") for name in names], rows)
