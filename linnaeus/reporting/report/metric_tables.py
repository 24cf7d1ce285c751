"""Make the tables of the final validation metrics: a row per task or per metric, and a column per validation pass.

A pass with masked metadata also shows the difference from the normal pass. Further columns have the values of two trivial baselines and of
the best earlier run of the experiment. The tables depend only on the form of the keys, `<pass>/<task>/<metric>` or `<pass>/<metric>`.

A difference is coloured only if it is significant. With a paired 95 % interval, which needs the tables of samples, this means that the
interval excludes 0. Otherwise, the difference must exceed sqrt(a^2 + b^2), where a and b are the half-widths of the intervals of the two
values. The interval of a value is from `<key>_low` to `<key>_high`.
"""

import math
from collections.abc import Mapping, Sequence

from linnaeus.reporting.report.html_parts import Cell, Column, folded, interval, metric_label, number, table, text_cell
from linnaeus.reporting.report.metric_names import (
    column_name,
    direction,
    last_part,
    meaning,
    metric_name,
    passes_and_tasks,
    show_difference,
    show_value,
)
from linnaeus.reporting.report.pass_differences import Intervals
from linnaeus.reporting.report.previous_best import Previous
from linnaeus.reporting.report.run_files import Rows, half_width

Final = Mapping[str, float | None]
BASELINES = {
    "constant": "Always the most frequent class of the training data.",
    "shuffled": "The model's predictions in random order.",
    "unigram": "Every token with its frequency in the training text, without context.",
}


def final_tables(
    final: Final, baselines: Rows | None = None, previous: Previous | None = None, differences: Intervals | None = None
) -> str:
    """Return the tables of the final validation metrics as HTML; "" if `final` has none.

    The first table has one metric by task: `top1`, otherwise the first metric that several tasks have. The second table has the metrics
    over all tasks. The other metrics by task are in a folded section.

    final: metric key -> value. baselines: rows of the table `baselines` of the run, with the column `metric` and some of `BASELINES`; None:
    no such columns. previous: the best earlier run; None: no such column. differences: metric key of a masked pass -> interval of the
    difference from the normal pass, from `pass_differences`; None: no intervals."""
    passes, tasks = passes_and_tasks(final)
    if not passes:
        return ""
    by_task = _names(final, passes, 2)
    overall = _names(final, passes, 1)
    having = {metric: [task for task in tasks if any(f"{name}/{task}/{metric}" in final for name in passes)] for metric in by_task}
    shared = [metric for metric, own in having.items() if len(own) > 1 or metric == "top1"]
    first = "top1" if "top1" in shared else (shared[0] if shared else "")
    beside = _Beside({row["metric"]: row for row in baselines or ()}, previous, differences or {})

    def of_tasks(metric: str) -> str:
        rows = [(text_cell(task), [f"{p}/{task}/{metric}" for p in passes]) for task in tasks]
        return _table(metric_name(metric), final, rows, passes, beside, meaning(metric))

    rows = [(Cell(metric_label(m), metric_name(m)), [f"{p}/{m}" for p in passes]) for m in overall]
    title = "Over all tasks" if by_task else "Validation"
    others = "".join(of_tasks(metric) for metric in shared if metric != first)
    for task in tasks:  # metrics of one task alone, such as the bins of a density
        alone = [metric for metric in by_task if metric not in shared and having[metric] == [task]]
        own = [(Cell(metric_label(m), metric_name(m)), [f"{p}/{task}/{m}" for p in passes]) for m in alone]
        others += _table(task, final, own, passes, beside)
    top = of_tasks(first) if first else ""
    return top + _table(title, final, rows, passes, beside) + folded("All metrics by task", others)


def _names(final: Final, passes: Sequence[str], slashes: int) -> list[str]:
    """Return the last parts of the metric keys of `passes`, each once.

    slashes: number of slashes in the keys: 1 for metrics over all tasks, 2 for metrics by task. Keys that are the end (`_low`, `_high`) of
    the interval of another metric in `final` are left out."""
    keys = [key for key in final if key.count("/") == slashes and key.split("/")[0] in passes]
    own = [key for key in keys if not key.endswith(("_low", "_high")) or key.rpartition("_")[0] not in final]
    return list(dict.fromkeys(key.rpartition("/")[2] for key in own))


class _Beside:
    """Data shown beside the metrics of a run.

    baselines: metric key without the pass -> row of the table `baselines`. previous: the best earlier run, or None. differences: metric key
    -> interval of the difference from the normal pass."""

    def __init__(self, baselines: Mapping[str, Mapping[str, str]], previous: Previous | None, differences: Intervals) -> None:
        self.baselines, self.previous, self.differences = baselines, previous, differences

    def columns(self, keys: Sequence[str]) -> list[Column]:
        """Return the columns of `BASELINES` and `previous best`, each only if it has a value for one of `keys`. keys: metric keys of the
        normal pass."""
        known = [self.baselines.get(key.partition("/")[2], {}) for key in keys]
        columns = [Column(name, about) for name, about in BASELINES.items() if any(row.get(name) for row in known)]
        if self.previous is not None and any(self.previous.final.get(key) is not None for key in keys):
            columns.append(Column("previous best", f"Run {self.previous.name}, the best earlier run of this experiment on the same data."))
        return columns

    def cells(self, columns: Sequence[Column], final: Final, key: str) -> list[Cell]:
        """Return one cell per column for the metric `key`; an en dash without a value. columns: result of the method `columns`. key: metric
        key of the normal pass."""
        found, row = [], self.baselines.get(key.partition("/")[2], {})
        for column in columns:
            if column.title in BASELINES:
                value = float(text) if (text := row.get(column.title)) else None
                found.append(Cell(show_value(key, value), value))
            else:
                assert self.previous is not None
                value = self.previous.final.get(key)
                found.append(Cell(show_value(key, value), value))
        return found


def _table(
    title: str, final: Final, rows: Sequence[tuple[Cell, list[str]]], passes: Sequence[str], beside: _Beside, about: str = ""
) -> str:
    """Return an HTML table with a column per validation pass and the columns of `beside`; "" without values.

    title: caption. rows: (name cell, metric keys in `final`, one per pass, the normal pass first); rows without a value are left out.
    about: meaning of the metric, for a table with a row per task; "" for a table with a row per metric."""
    shown = [(name, keys) for name, keys in rows if any(final.get(key) is not None for key in keys)]
    extra = beside.columns([keys[0] for _, keys in shown])
    columns = [Column("task" if about else "metric", about, words=True), *(Column(column_name(name)) for name in passes), *extra]
    bodies = [[name, *(_cell(final, key, keys[0], beside) for key in keys), *beside.cells(extra, final, keys[0])] for name, keys in shown]
    return table(title, columns, bodies, sortable=False)


def _cell(final: Final, key: str, normal_key: str, beside: _Beside) -> Cell:
    """Return a table cell for `final[key]`: the value, its difference from `final[normal_key]`, and its interval.

    An unknown difference or interval is left out; without a value the cell is an en dash. normal_key: key of this metric in the normal
    pass. If it equals `key`, there is no difference."""
    value, normal = final.get(key), final.get(normal_key)
    html = number(key, value)
    if value is not None and normal is not None and key != normal_key:
        html += difference(key, value - normal, uncertainty(final, key, normal_key, beside.differences))
    return Cell(html + interval(key, final.get(f"{key}_low"), final.get(f"{key}_high")), value)


def uncertainty(final: Final, key: str, normal_key: str, differences: Intervals) -> float:
    """Return the number that |`final[key]` - `final[normal_key]`| must exceed to be significant.

    With a paired interval in `differences`, return 0 if the interval excludes 0, otherwise infinity. Without it, return sqrt(a^2 + b^2),
    where a and b are the half-widths of the intervals of the two values; infinity if a value has no interval."""
    if key in differences:
        low, high = differences[key]
        return 0.0 if low > 0 or high < 0 else math.inf
    return math.hypot(half_width(final, key), half_width(final, normal_key))


def difference(key: str, change: float, uncertainty: float) -> str:
    """Return the difference `change` of two values of the metric `key` as HTML.

    If |`change`| is larger than `uncertainty`, and if a higher or a lower value of the metric is better, the difference is coloured and has
    the word `better` or `worse` for screen readers."""
    mark = sign = ""
    if direction(last_part(key)) and abs(change) > uncertainty:
        better = (change > 0) == (direction(last_part(key)) > 0)
        mark, sign = (" good", "better ") if better else (" bad", "worse ")
    hidden = f'<span class="hidden">{sign}</span>' if sign else ""
    return f'<span class="delta{mark}">{hidden}{show_difference(key, change)}</span>'
