"""The final metrics as HTML tables: a row per task, a column per validation pass, with the differences to the normal pass.

Metric keys are `<pass>/<task>/<metric>` or `<pass>/<metric>`; the tables use nothing else of the workload.
"""

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_SHARES = re.compile(r"(.*top\d+|macro.*|.*accuracy.*|.*chain.*|.*inconsistent.*|.*fraction.*|.*share.*|many|medium|few|ece)(_low|_high)?")
_LOWER_IS_BETTER = re.compile(r".*(loss|inconsistent|error|distance|severity|hd\d+|ece|aurc|perplexity|bits).*")


def is_share(metric: str) -> bool:
    """Return True if a metric is a share, which is shown in per cent."""
    return bool(_SHARES.fullmatch(metric))


def show_value(metric: str, value: float | None) -> str:
    """Return the text of a metric: per cent for a share, an en dash for an undefined value."""
    if value is None:
        return "–"
    return f"{100 * value:.1f} %" if is_share(metric) and 0 <= value <= 1 else f"{value:.4g}"


def passes_and_tasks(final: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the validation passes, the normal one first, and the tasks, both in the order of their keys."""
    keys = [parts for key in final if len(parts := key.split("/")) in (2, 3) and parts[0].startswith("val")]
    passes = dict.fromkeys(parts[0] for parts in keys)
    return sorted(passes, key=lambda name: "_mask_" in name), list(dict.fromkeys(parts[1] for parts in keys if len(parts) == 3))


def final_tables(final: Mapping[str, float | None]) -> str:
    """Return a table of top-1 by task, one of the metrics over all tasks, and the other metrics by task folded; "" without a
    validation."""
    passes, tasks = passes_and_tasks(final)
    if not passes:
        return ""
    by_task = list(dict.fromkeys(key.split("/")[2] for key in final if key.count("/") == 2 and key.split("/")[0] in passes))
    overall = list(dict.fromkeys(key.split("/")[1] for key in final if key.count("/") == 1 and key.split("/")[0] in passes))
    first = "top1" if "top1" in by_task else (by_task[0] if by_task else "")

    def ranks(metric: str) -> str:
        return _table(_label(metric), [(task, metric, [final.get(f"{p}/{task}/{metric}") for p in passes]) for task in tasks], passes)

    top = ranks(first) if first else ""
    title = "Over all ranks" if by_task else "Validation"
    all_ranks = _table(title, [(_label(m), m, [final.get(f"{p}/{m}") for p in passes]) for m in overall], passes)
    folded = "".join(ranks(metric) for metric in by_task if metric != first)
    return top + all_ranks + (f"<details><summary>All metrics by rank</summary>{folded}</details>" if folded else "")


def _label(metric: str) -> str:
    return re.sub(r"^top(\d+)$", r"Top-\1 accuracy", metric).replace("_", " ")


def _table(title: str, rows: Sequence[tuple[str, str, list[float | None]]], passes: Sequence[str]) -> str:
    head = "".join(f"<th>{escape(column_name(name))}</th>" for name in passes)
    body = "".join(
        f"<tr><td>{escape(name)}</td>{''.join(_cell(metric, v, values[0] if i else None) for i, v in enumerate(values))}</tr>"
        for name, metric, values in rows
        if any(v is not None for v in values)
    )
    return f'<h3>{escape(title)}</h3><div class="card"><table><tr><th></th>{head}</tr>{body}</table></div>' if body else ""


def column_name(name: str) -> str:
    """Return the heading of a pass: `without SPATIAL` for `val_mask_SPATIAL`."""
    base, masked, components = name.partition("_mask_")
    weights = " (EMA)" if base.startswith("val_ema") else ""
    return (f"without {'metadata' if components == 'meta' else components.replace('_', ' + ')}" if masked else "normal") + weights


def _cell(metric: str, value: float | None, normal: float | None) -> str:
    shown = show_value(metric, value)
    if value is None or normal is None:
        return f"<td>{shown}</td>"
    change = value - normal
    worse = (change > 0) == bool(_LOWER_IS_BETTER.fullmatch(metric))
    text = f"{100 * change:+.1f}" if is_share(metric) else f"{change:+.3g}"
    mark = "" if text.strip("+-0.") == "" else (" bad" if worse else " good")
    return f'<td>{shown}<span class="delta{mark}">{text}</span></td>'
