"""Text tables of the final metrics of a run: completions beside the baselines and the optimum, then the other metrics."""

import math
from collections.abc import Mapping, Sequence

from linnaeus.reporting.report.metric_names import show_value

REMOVED = (1, 2, 3, 4, 5, 6)
ENDS = ("low", "high")  # of the 95 % interval of a margin
TOKENS = {"loss": "loss, nats per hidden token", "f1": "F1 at 0.5", "precision": "precision", "recall": "recall"}
TOKENS |= {"average_precision": "average precision", "ece": "calibration error of slot probabilities"}
TOKENS |= {"legal": "legal answers", "changed": "answers that change given gear"}
SCORES = {"weapon_6": "weapon, 6", "gear_6": "gear, 6", "points": "points"}  # metric of answers -> head of its column


def headline(final: Mapping[str, float]) -> list[str]:
    """Return the result of a run in at most three lines: share of right slots, share of the optimum, and margin over the best baseline.

    Return [] before the first validation. final: {name of a metric: newest value}."""
    key = _pass(final)
    if key is None:
        return []
    lines = [f"right of 6 removed slots {_percent(final, f'{key}/slots_6')}, of 1 {_percent(final, f'{key}/slots_1')}"]
    shares = [f"{_percent(final, f'{key}/of_optimum_{k}')} ({k} removed)" for k in (6, 1) if f"{key}/of_optimum_{k}" in final]
    margins = [
        f"{100 * final[f'{key}/margin_{k}']:+.1f} ± {100 * final[f'{key}/margin_{k}_error']:.1f} points ({k} removed)"
        for k in (6, 1)
        if f"{key}/margin_{k}" in final
    ]
    lines += [f"share of the optimum {', '.join(shares)}"] if shares else []
    lines += [f"over the best baseline {', '.join(margins)}"] if margins else []
    return lines


def result_tables(final: Mapping[str, float]) -> dict[str, list[str]]:
    """Return {title: lines} of the tables of the last validation; {} before the first one. final: {name of a metric: newest value}."""
    key = _pass(final)
    if key is None:
        return {}
    names = methods(final, key)
    heads = [str(k) for k in REMOVED]
    slots, references = ([f"{kind}_{k}" for k in REMOVED] for kind in ("slots", "references"))
    tables = {
        "Completion of builds": _table(final, names, "right slots of those removed, %", dict(zip(slots, heads))),
        "Against several references": _table(final, names, "right against several builds, %", dict(zip(references, heads))),
        "Slots that the weapon decides or that need the given gear, and ability points": _table(final, names, "right ones, %", SCORES),
    }
    rows = tables["Completion of builds"]
    if any(name.startswith(f"{key}/margin_") for name in final):
        rows.append(f"{'model over the best baseline':34s}" + _row(final, [f"{key}/margin_{k}" for k in REMOVED], "+.1f"))
        rows.append(f"{'standard error':34s}" + _row(final, [f"{key}/margin_{k}_error" for k in REMOVED]))
        rows += [f"{f'95 % interval, {end}':34s}" + _row(final, [f"{key}/margin_{k}_{end}" for k in REMOVED], "+.1f") for end in ENDS]
    if any(name.startswith(f"{key}/of_optimum_") for name in final):
        rows.append(f"{'model, % of the optimum':34s}" + _row(final, [f"{key}/of_optimum_{k}" for k in REMOVED]))
    others = {name: final[f"{key}/{name}"] for name in TOKENS if f"{key}/{name}" in final}
    shown = {name: "-" if math.isnan(value) else show_value(name, value) for name, value in others.items()}
    return {**tables, "Tokens and answers": [f"{TOKENS[name]:44s}{text:>10s}" for name, text in shown.items()]}


def methods(final: Mapping[str, float], key: str) -> dict[str, str]:
    """Return {method: beginning of the names of its metrics} of the model, the baselines and the optimum. key: name of the pass."""
    baselines = dict.fromkeys(name.split("/")[2] for name in final if name.startswith(f"{key}/baseline/"))
    names = {"model": f"{key}/"} | {name: f"{key}/baseline/{name}/" for name in baselines}
    return names | ({"optimum": f"{key}/optimum/"} if any(name.startswith(f"{key}/optimum/") for name in final) else {})


def _table(final: Mapping[str, float], names: Mapping[str, str], title: str, columns: Mapping[str, str]) -> list[str]:
    """Return the lines of a table with a row for each method. names: result of `methods`. columns: metric -> head of its column."""
    head = f"{title:34s}" + "".join(f"{text:>{max(8, len(text) + 2)}s}" for text in columns.values())
    widths = [max(8, len(text) + 2) for text in columns.values()]
    return [head, *(f"{name:34s}" + _row(final, [prefix + metric for metric in columns], widths=widths) for name, prefix in names.items())]


def _pass(final: Mapping[str, float]) -> str | None:
    return next((name.partition("/")[0] for name in final), None)


def _row(final: Mapping[str, float], names: Sequence[str], form: str = ".1f", widths: Sequence[int] | None = None) -> str:
    values = (100 * final.get(name, math.nan) for name in names)
    return "".join(f"{'-' if math.isnan(v) else format(v, form):>{w}s}" for v, w in zip(values, widths or [8] * len(names), strict=True))


def _percent(final: Mapping[str, float], name: str) -> str:
    value = final.get(name, math.nan)
    return "-" if math.isnan(value) else f"{100 * value:.1f} %"
