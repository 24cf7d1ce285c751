"""Text lines of the final metrics of dictionaries: a table with a row for each dictionary, and a line for each of the first ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from linnaeus.workloads.dictionary.dictionary_metrics import prefix
from linnaeus.workloads.dictionary.results_section import TABLE

SHOWN = 3  # dictionaries in the headline, at most


def summary(final: Mapping[str, float], names: Sequence[str]) -> list[str]:
    """Return the lines of a table: a row for each dictionary, a column for each metric of `TABLE` that `final` has.

    final: metric key -> value; without metrics the only line is an empty header. names: names of the dictionaries."""
    found = _pass(final)
    columns = [name for name in TABLE if any(f"{found}/{prefix(task, names)}{name}" in final for task in names)]
    lines = [f"{'':14s}" + "".join(f"{name.replace('_', ' '):>19s}" for name in columns)]
    for name in names if final else ():
        values = [final.get(f"{found}/{prefix(name, names)}{column}", math.nan) for column in columns]
        lines.append(f"{name:14s}" + "".join(f"{value:>19.4g}" for value in values))
    return lines


def headline(final: Mapping[str, float], names: Sequence[str]) -> list[str]:
    """Return a line for each of the first `SHOWN` dictionaries: active features, explained variance, and loss recovered if measured.

    A dictionary without the first two metrics in `final` (metric key -> value) is left out. names: names of the dictionaries."""
    found = _pass(final)
    lines = []
    for name in names[:SHOWN]:
        value = {key: final.get(f"{found}/{prefix(name, names)}{key}") for key in ("l0", "explained_variance", "loss_recovered")}
        if value["l0"] is None or value["explained_variance"] is None:
            continue
        line = f"{name}: {value['l0']:.1f} features active, {100 * value['explained_variance']:.1f} % of the variance explained"
        recovered = value["loss_recovered"]
        lines.append(line + ("" if recovered is None else f", {100 * recovered:.1f} % of the loss recovered"))
    return lines


def _pass(final: Mapping[str, float]) -> str:
    return next((name.partition("/")[0] for name in final), "val")
