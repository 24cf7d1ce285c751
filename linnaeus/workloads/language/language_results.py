"""Tables of the final results of a run on text: validation passes, sources and dimensions."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence

COLUMNS = {"loss": "nats/token", "perplexity": "perplexity", "bits_per_byte": "bits/byte", "top1": "top-1 %"}
SOURCE, DIMENSION = "source", "dimension"  # in metric names: PASS/source/NAME/loss, PASS/dimension/NAME/score


def summary_lines(final: Mapping[str, float], weights: Mapping[str, float]) -> list[str]:
    """Return all tables as lines. `weights`: those of the dimensions in the last update; empty without dimensions."""
    tables = (pass_lines(final), source_lines(final), dimension_lines(final, weights))
    return [line for i, table in enumerate(filter(None, tables)) for line in ([""] * bool(i) + table)]


def report_sections(notes: Sequence[str], final: Mapping[str, float], weights: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return (title, HTML) of each section of report.html."""
    tables = {
        "Prediction of the next token": [*notes, "", *pass_lines(final)],
        "Sources": source_lines(final),
        "Dimensions": dimension_lines(final, weights),
    }
    return [(title, f"<pre>{html.escape(chr(10).join(lines))}</pre>") for title, lines in tables.items() if lines]


def pass_lines(final: Mapping[str, float]) -> list[str]:
    """Return a heading and one line per validation pass."""
    lines = [f"{'':12s}" + "".join(f"{name:>12s}" for name in COLUMNS.values())]
    for key in dict.fromkeys(name.partition("/")[0] for name in final):
        values = [final.get(f"{key}/{name}", math.nan) * (100 if name == "top1" else 1) for name in COLUMNS]
        lines.append(f"{key:12s}" + "".join(f"{_number(value):>12s}" for value in values))
    return lines


def source_lines(final: Mapping[str, float]) -> list[str]:
    """Return a heading and the validation loss of each source; [] without named sources."""
    rows = [f"{name:24s}{_number(value):>12s}" for name, value in _select(final, SOURCE, "loss")]
    return [f"{'source':24s}{'nats/token':>12s}", *rows] if rows else []


def dimension_lines(final: Mapping[str, float], weights: Mapping[str, float]) -> list[str]:
    """Return a heading and the weight and score of each dimension; [] without dimensions."""
    scores = dict(_select(final, DIMENSION, "score"))
    rows = [f"{name:24s}{weight:>12.4f}{_number(scores.get(name, math.nan), '+.5f'):>12s}" for name, weight in weights.items()]
    return [f"{'dimension':24s}{'weight':>12s}{'score':>12s}  (nats/token lost without it)", *rows] if rows else []


def _select(final: Mapping[str, float], kind: str, metric: str) -> Iterator[tuple[str, float]]:
    """Yield (NAME, value) of the metrics PASS/kind/NAME/metric."""
    for key, value in final.items():
        match key.split("/"):
            case [_, found, name, last] if found == kind and last == metric:
                yield name, value


def _number(value: float, form: str = ".4f") -> str:
    return "-" if math.isnan(value) else format(value, form)
