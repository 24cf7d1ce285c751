"""Tables of the final metrics of a run."""

import math
from collections.abc import Mapping


def headline(final: Mapping[str, float]) -> list[str]:
    """Return the result of a run in at most three lines."""
    key = next((name.partition("/")[0] for name in final), None)
    if key is None:
        return []
    return [f"right of 6 removed slots: {_percent(final, f'{key}/slots_6')}, of 1: {_percent(final, f'{key}/slots_1')}"]


def result_tables(final: Mapping[str, float]) -> dict[str, list[str]]:
    """Return {title: lines}."""
    return {"Completion of builds": [f"{name:32s}{value:>10.4f}" for name, value in final.items()]}


def _percent(final: Mapping[str, float], name: str) -> str:
    value = final.get(name, math.nan)
    return "-" if math.isnan(value) else f"{100 * value:.1f} %"
