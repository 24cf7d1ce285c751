"""Format the final validation metrics as HTML tables: a row per task and a column per validation pass, with the difference of each value
from that of the normal pass.

Metric keys are `<pass>/<task>/<metric>` or `<pass>/<metric>`; nothing else about the workload is needed. A difference is coloured only if
it is larger than the uncertainty of the two values, computed from the 95 % intervals `<key>_low` to `<key>_high`.
"""

import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_SHARES = re.compile(r"(.*top\d+|macro.*|.*accuracy.*|.*chain.*|.*inconsistent.*|.*fraction.*|.*share.*|many|medium|few|ece)(_low|_high)?")
_LOWER_IS_BETTER = re.compile(r".*(loss|inconsistent|error|distance|hd\d+|ece|aurc|perplexity|bits).*")
_NOT_RATED = re.compile(r".*severity.*")  # severity also falls if a model fails on easy samples
_WORDS = (  # pattern of a metric -> words, in this order
    (r"^with_meta_(.*)$", r"\1, rows with metadata"),
    (r"^with_([A-Z_]+)_([a-z].*)$", r"\2, rows with \1"),
    (r"^crm_", "least expected height: "),
    (r"\bhd1$", "distance in the tree"),
    (r"\bhd(\d+)$", r"distance in the tree, mean of the first \1"),
    (r"^(.*\b)?severity$", r"\1distance in the tree of the errors"),
    (r"\btop(\d+)\b", r"top-\1 accuracy"),
    (r"^hierarchical_aurc$", "risk over coverage, with coarser answers"),
    (r"\baurc$", "risk over coverage"),
    (r"\bece$", "calibration error"),
    (r"^partial_chain$", "all known ranks right"),
    (r"\bchain$", "all ranks right"),
    (r"^loss$", "Loss"),
    (r"^inconsistent$", "inconsistent paths"),
    (r"^(depth|info)_(precision|recall)$", r"\2 by \1"),
    (r"^(depth|info)_f1$", r"F1 by \1"),
    (r"\binfo$", "information"),
)


def is_share(metric: str) -> bool:
    """Return True if a metric is a fraction from 0 to 1, which is shown in per cent."""
    return bool(_SHARES.fullmatch(metric))


def show_value(metric: str, value: float | None) -> str:
    """Return the value of a metric as text: per cent for a fraction, an en dash for None (undefined)."""
    if value is None:
        return "–"
    return f"{100 * value:.1f} %" if is_share(metric) and 0 <= value <= 1 else f"{value:.4g}"


def passes_and_tasks(final: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the names of the validation passes, the normal one first, and the names of the tasks, both in the order of the keys of
    `final`."""
    keys = [parts for key in final if len(parts := key.split("/")) in (2, 3) and parts[0].startswith("val")]
    passes = dict.fromkeys(parts[0] for parts in keys)
    return sorted(passes, key=lambda name: "_mask_" in name), list(dict.fromkeys(parts[1] for parts in keys if len(parts) == 3))


def final_tables(final: Mapping[str, float | None]) -> str:
    """Return HTML tables: top-1 accuracy by task, the metrics over all tasks, and, folded, the other metrics by task. Return "" if `final`
    has no validation metrics."""
    passes, tasks = passes_and_tasks(final)
    if not passes:
        return ""
    by_task = list(dict.fromkeys(key.split("/")[2] for key in final if key.count("/") == 2 and key.split("/")[0] in passes))
    overall = list(dict.fromkeys(key.split("/")[1] for key in final if key.count("/") == 1 and key.split("/")[0] in passes))
    first = "top1" if "top1" in by_task else (by_task[0] if by_task else "")

    def ranks(metric: str) -> str:
        return _table(_label(metric), final, [(task, metric, [f"{p}/{task}/{metric}" for p in passes]) for task in tasks], passes)

    top = ranks(first) if first else ""
    title = "Over all ranks" if by_task else "Validation"
    all_ranks = _table(title, final, [(_label(m), m, [f"{p}/{m}" for p in passes]) for m in overall], passes)
    folded = "".join(ranks(metric) for metric in by_task if metric != first)
    return top + all_ranks + (f"<details><summary>All metrics by rank</summary>{folded}</details>" if folded else "")


def _label(metric: str) -> str:
    """Return words for the name of a metric: `Least expected height: distance in the tree` for `crm_hd1`."""
    stem, _, bound = metric.rpartition("_")
    name, interval = (stem, f", {bound} end of 95 %") if bound in ("low", "high") else (metric, "")
    text = name
    for pattern, words in _WORDS:
        text = re.sub(pattern, words, text)
    if text != name:  # any other name is the workload's own and is not changed
        text = text[:1].upper() + text[1:]
    return text.replace("_", " ") + interval


def _table(title: str, final: Mapping[str, float | None], rows: Sequence[tuple[str, str, list[str]]], passes: Sequence[str]) -> str:
    """Return an HTML table with a column per validation pass. `rows`: (name, metric, the key in `final` for each pass)."""
    head = "".join(f"<th>{escape(column_name(name))}</th>" for name in passes)
    body = "".join(
        f"<tr><td>{escape(name)}</td>{''.join(_cell(final, metric, key, keys[0]) for key in keys)}</tr>"
        for name, metric, keys in rows
        if any(final.get(key) is not None for key in keys)
    )
    return f'<h3>{escape(title)}</h3><div class="card"><table><tr><th></th>{head}</tr>{body}</table></div>' if body else ""


def column_name(name: str) -> str:
    """Return the column heading of a validation pass: `without spatial` for `val_mask_SPATIAL`."""
    base, masked, components = name.partition("_mask_")
    weights = " (EMA)" if base.startswith("val_ema") else ""
    return (f"without {'metadata' if components == 'meta' else components.replace('_', ' + ').lower()}" if masked else "normal") + weights


def _cell(final: Mapping[str, float | None], metric: str, key: str, normal_key: str) -> str:
    """Return the table cell of `final[key]`. `normal_key` is the same metric in the normal pass; if it differs from `key`, the cell also
    shows the difference of the two values."""
    value, normal = final.get(key), final.get(normal_key)
    shown = show_value(metric, value)
    if value is None or normal is None or key == normal_key:
        return f"<td>{shown}</td>"
    change = value - normal
    mark = ""
    if not _NOT_RATED.fullmatch(metric) and abs(change) > math.hypot(_half_width(final, key), _half_width(final, normal_key)):
        mark = " bad" if (change > 0) == bool(_LOWER_IS_BETTER.fullmatch(metric)) else " good"
    text = f"{100 * change:+.1f}" if is_share(metric) else f"{change:+.3g}"
    return f'<td>{shown}<span class="delta{mark}">{text}</span></td>'


def _half_width(final: Mapping[str, float | None], key: str) -> float:
    """Return half the width of the 95 % interval of `final[key]`; infinity if it has no interval."""
    low, high = final.get(f"{key}_low"), final.get(f"{key}_high")
    return (high - low) / 2 if low is not None and high is not None else math.inf
