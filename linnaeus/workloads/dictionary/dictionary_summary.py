"""Text lines of the final metrics of dictionaries: a table with a row for each dictionary, and a line for each of the first ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from linnaeus.workloads.dictionary.dictionary_metrics import prefix
from linnaeus.workloads.dictionary.results_section import TABLE

SHOWN = 3  # dictionaries in the headline, at most
HEADLINE = {  # metric -> (factor, words after the number)
    "l0": (1, "features active"),
    "explained_variance": (100, "% of the variance explained"),
    "loss_recovered": (100, "% of the loss recovered"),
}


def summary(final: Mapping[str, float], names: Sequence[str]) -> list[str]:
    """Return the lines of a table: a row for each dictionary, a column for each metric of `TABLE` that `final` has.

    final: metric key -> value; without metrics the only line is an empty header. names: names of the dictionaries."""
    found = _pass(final)
    columns = [name for name in TABLE if any(f"{found}/{prefix(task, names)}{name}" in final for task in names)]
    lines = [f"{'':14s}" + "".join(f"{name.replace('_', ' '):>19s}" for name in columns)]
    for name in names if final else ():
        values = [final.get(f"{found}/{prefix(name, names)}{column}", math.nan) for column in columns]
        lines.append(f"{name:14s}" + "".join(f"{'-' if math.isnan(value) else f'{value:.4g}':>19s}" for value in values))
    return lines


def headline(final: Mapping[str, float], names: Sequence[str]) -> list[str]:
    """Return a line for each of the first `SHOWN` dictionaries: active features, explained variance, and loss recovered.

    Metrics that are not in `final` (metric key -> value) or are NaN are left out, and dictionaries without any. names: names of the
    dictionaries."""
    found = _pass(final)
    lines = []
    for name in names[:SHOWN]:
        values = [final.get(f"{found}/{prefix(name, names)}{metric}", math.nan) for metric in HEADLINE]
        known = [(value, *words) for value, words in zip(values, HEADLINE.values(), strict=True) if not math.isnan(value)]
        texts = [f"{factor * value:.1f} {words}" for value, factor, words in known]
        lines += [f"{name}: {', '.join(texts)}"] if texts else []
    return lines


def _pass(final: Mapping[str, float]) -> str:
    return next((name.partition("/")[0] for name in final), "val")
