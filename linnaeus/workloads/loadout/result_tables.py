"""Text tables of the final metrics of a run: completions beside the baselines and the optimum, then the other metrics."""

import math
from collections.abc import Mapping

from linnaeus.reporting.report.metric_names import show_value

REMOVED = (1, 2, 3, 4, 5, 6)
TOKENS = {"loss": "loss, nats per hidden token", "f1": "F1 at 0.5", "precision": "precision", "recall": "recall"}
TOKENS |= {"average_precision": "average precision", "ece": "calibration error of slot probabilities", "points": "ability points kept"}
TOKENS |= {f"references_{k}": f"{k} removed, against several references" for k in REMOVED}
TOKENS |= {"weapon_6": "6 removed: slots that the weapon decides", "gear_6": "6 removed: slots that need the given gear"}
TOKENS |= {"legal": "legal answers", "changed": "answers that change given gear"}


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
    head = f"{'right slots of those removed, %':34s}" + "".join(f"{k:>8d}" for k in REMOVED)
    names = {"model": f"{key}/"}
    names |= {name.split("/")[2]: name.rpartition("slots_")[0] for name in final if name.startswith(f"{key}/baseline/")}
    names |= {"optimum": f"{key}/optimum/"} if any(name.startswith(f"{key}/optimum/") for name in final) else {}
    rows = [f"{name:34s}" + _row(final, f"{prefix}slots_") for name, prefix in names.items()]
    if any(name.startswith(f"{key}/margin_") for name in final):
        rows.append(f"{'model over the best baseline':34s}" + _row(final, f"{key}/margin_", "+.1f"))
        rows.append(f"{'standard error':34s}" + _row(final, f"{key}/margin_", ".1f", "_error"))
    if any(name.startswith(f"{key}/of_optimum_") for name in final):
        rows.append(f"{'model, % of the optimum':34s}" + _row(final, f"{key}/of_optimum_"))
    others = [f"{text:44s}{show_value(name, final[f'{key}/{name}']):>10s}" for name, text in TOKENS.items() if f"{key}/{name}" in final]
    return {"Completion of builds": [head, *rows], "Tokens and answers": others}


def _pass(final: Mapping[str, float]) -> str | None:
    return next((name.partition("/")[0] for name in final), None)


def _row(final: Mapping[str, float], prefix: str, form: str = ".1f", suffix: str = "") -> str:
    values = (100 * final.get(f"{prefix}{k}{suffix}", math.nan) for k in REMOVED)
    return "".join(f"{'-' if math.isnan(value) else format(value, form):>8s}" for value in values)


def _percent(final: Mapping[str, float], name: str) -> str:
    value = final.get(name, math.nan)
    return "-" if math.isnan(value) else f"{100 * value:.1f} %"
