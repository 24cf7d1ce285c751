"""Draw the panel of a run on a terminal: at most ten rows, fitted to the width.

It has bars for the run, for the validation pass in progress and for the time not spent waiting for data; without a pass in progress, a
chart of the losses; the numbers of the last report, with charts of the gradient norm and of the alarms, or the newest alarm; and a table of
the tasks. Only the named colours of the terminal are used, so the panel can be read on light and dark backgrounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from linnaeus.reporting.formatting import fit, format_duration, format_loss, format_percent, sparkline
from linnaeus.reporting.terminal.brief_report import brief_numbers
from linnaeus.reporting.terminal.progress_report import ReportData

if TYPE_CHECKING:
    from linnaeus.reporting.terminal.display import View

NAME, NUMBER, GAP = 11, 10, 2  # columns of the names of rows, of a number in the table of tasks, and between two columns
CURVE = 6  # columns of a chart beside a number
LEFT_OUT = 6  # columns of the number of tasks that are not shown, such as `  +31`


def render(view: View, width: int) -> Group:
    """Return the rows of the panel, with the content `view`, for a terminal of `width` columns."""
    rows: list[Table | Text] = [_bars(view, width)]
    if view.report is not None:
        if view.alarm:
            rows.append(Text(f"{'alarm':<{NAME + GAP}}{view.alarm}", style="bold yellow", no_wrap=True, overflow="ellipsis"))
        else:
            rows.append(Text(" " * (NAME + GAP) + fit(_numbers(view, view.report), width - NAME - GAP), no_wrap=True, overflow="ellipsis"))
        rows += _tasks(view, view.report, width)
    if view.notice:
        rows.append(Text(view.notice, style="bold", no_wrap=True, overflow="ellipsis"))
    return Group(*rows)


# -- bars ----------------------------------------------------------------------------------------------------------------------


def preparation_row(share: float, text: str, width: int) -> Table:
    """Return a row with a bar for the preparation of data, which is shown before the panel of the run.

    share: fraction done, 0 to 1. text: written after the bar."""
    grid = _grid(width)
    grid.add_row("preparing", *_bar(share), text)
    return grid


def _grid(width: int) -> Table:
    """Return an empty table for bars, with the columns name, bar, percentage and text."""
    grid = Table.grid(padding=(0, GAP, 0, 0), expand=True)
    grid.add_column(width=NAME, no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(width=5, justify="right", no_wrap=True)
    grid.add_column(width=min(46, width // 2), no_wrap=True, overflow="ellipsis")
    return grid


def _bars(view: View, width: int) -> Table:
    grid = _grid(width)
    grid.add_row("run", *_bar(view.step / view.total_steps), Text(f"{_step(view)}{time_left(view)}", style="bold"))
    if view.running is not None:
        name, done, total, left = view.running
        text = f"{name}, {format_duration(left)} left" if left is not None else name
        grid.add_row("validation", *_bar(done / max(total, 1)), text)
    else:
        column = max(0, width - NAME - 5 - min(46, width // 2) - 3 * GAP)
        trend = sparkline(view.curves.get("train/loss", []), column)
        name, text = ("loss", f"validation: {_last_validation(view)}") if trend else ("validation", _last_validation(view))
        grid.add_row(Text(name, style="dim"), Text(trend, style="cyan", no_wrap=True), "", Text(text, style="dim"))
    waiting = view.report.clocks.get("recent/waiting_for_data") if view.report is not None else None
    if waiting is not None:
        grid.add_row("data ready", *_bar(1 - waiting), f"training waits {format_percent(waiting, 0)} of the time")
    return grid


def _bar(share: float) -> tuple[ProgressBar, str]:
    bar = ProgressBar(total=1.0, completed=share, style="bright_black", complete_style="green", finished_style="green")
    return bar, f"{int(100 * share)} %"


def _step(view: View) -> str:
    return f"{view.step:,} of {view.total_steps:,}"


def time_left(view: View) -> str:
    """Return the time left of the whole run as `, 3m05s left`, or `, 3m05s + validation left` if the estimate excludes validation passes;
    "" without an estimate."""
    if view.left is None:
        return ""
    return f", {format_duration(max(0.0, view.left))}{' + validation' * view.left_without_validation} left"


def _last_validation(view: View) -> str:
    return "none yet" if view.validated is None else f"step {view.validated[0]:,}: {view.validated[1]}"


# -- the table of tasks --------------------------------------------------------------------------------------------------------


def _numbers(view: View, report: ReportData) -> list[str]:
    """Return the main numbers of the report, with a chart of the gradient norms and, after an alarm, of the number of alarms."""
    drawn = {name: f" {sparkline(values, CURVE)}" for name, values in view.curves.items() if not name.endswith("loss")}
    return brief_numbers(report, drawn)


def _tasks(view: View, report: ReportData, width: int) -> list[Text]:
    """Return the lines of the table of tasks, with a column for each task that fits, the finest task first.

    The rows are a header, loss, top-1 (validation) and weight (factor of the loss). With one task there is no row of weights. With several
    tasks whose weights are all 1, a chart of the losses replaces that row. Rows without values are left out; return [] if no row has a
    value."""
    accuracy = view.accuracy
    all_names, column = list(reversed(report.tasks)), NUMBER + GAP
    fits = NAME + len(all_names) * column <= width
    names = all_names if fits else all_names[: max(1, (width - NAME - LEFT_OUT) // column)]
    rows = {
        "loss": [_number(report.row, f"train/{name}/loss", format_loss) for name in names],
        "top-1": [_number(accuracy, name, format_percent) for name in names],
        "weight": [_number(report.row, f"train/{name}/weight", "{:.3g}".format) for name in names] if len(report.tasks) > 1 else [],
    }
    if all(report.row.get(f"train/{name}/weight", 1.0) == 1 for name in report.tasks) and len(report.tasks) > 1:
        del rows["weight"]
        rows = {"loss": rows["loss"], "trend": [sparkline(view.curves.get(f"train/{name}/loss", []), NUMBER) for name in names], **rows}
    shown = {title: cells for title, cells in rows.items() if any(cells)}
    left_out = len(all_names) - len(names)
    head = _row("task", names) + (f"  +{left_out}" if left_out else "")
    return [Text(head, style="bold", no_wrap=True)] * bool(shown) + [
        Text(_row(title, cells), no_wrap=True) for title, cells in shown.items()
    ]


def _number(values: Mapping[str, float], name: str, form: Callable[[float], str]) -> str:
    return form(values[name]) if name in values else ""


def _row(title: str, cells: Sequence[str]) -> str:
    return f"{title:<{NAME}}" + "".join(" " * GAP + f"{cell[:NUMBER]:>{NUMBER}}" for cell in cells)
