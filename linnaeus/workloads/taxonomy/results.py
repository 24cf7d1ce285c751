"""The result of a run as a table for a person: accuracy per taxonomic rank and pass, beside the best possible where it is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

COLUMNS = {"top1": "top-1", "macro": "macro"}


def passes_of(final: Mapping[str, float]) -> dict[str, str]:
    """Prefix of the validated passes in `final` -> the oracle's name of the same conditions."""
    found = {}
    for key in final:
        prefix = key.split("/")[0]
        plain = prefix.replace("val_ema", "val", 1)
        found[prefix] = {"val": "with_meta", "val_mask_meta": "without_meta"}.get(plain, plain.removeprefix("val_"))
    return found


def accuracy_table(ranks: Sequence[str], components: Sequence[str], final: Mapping[str, float], ceilings: Mapping[str, float]) -> list[str]:
    """Lines: one per pass and rank, finest rank first, in percent; the ceiling and the share of it reached where there is one."""
    if not ceilings:
        return _plain_table(ranks, components, final)
    lines = [f"{'':46s}{'top-1':^22s}{'macro':^22s}", f"{'metadata':32s}{'rank':14s}" + f"{'run':>6s}{'best':>8s}{'share':>8s}" * 2]
    for prefix, condition in passes_of(final).items():
        for rank in reversed(ranks):
            cells = ""
            for column in COLUMNS:
                key = f"{prefix}/{rank}/" + ("macro_top1" if column == "macro" else column)
                cells += _cell(final.get(key), ceilings.get(f"{condition}/{rank}/{column}"))
            lines.append(f"{_named(condition, components):32s}{rank:14s}{cells}")
    return lines


def _plain_table(ranks: Sequence[str], components: Sequence[str], final: Mapping[str, float]) -> list[str]:
    lines = [f"{'metadata':32s}{'rank':14s}" + "".join(f"{name:>8s}" for name in COLUMNS.values())]
    for prefix, condition in passes_of(final).items():
        for rank in reversed(ranks):
            values = (final.get(f"{prefix}/{rank}/{key}", math.nan) for key in ("top1", "macro_top1"))
            cells = "".join(f"{'-':>8s}" if math.isnan(value) else f"{100 * value:8.1f}" for value in values)
            lines.append(f"{_named(condition, components):32s}{rank:14s}{cells}")
    return lines


def _cell(value: float | None, best: float | None) -> str:
    run = f"{100 * value:6.1f}" if value is not None and value == value else f"{'-':>6s}"
    if best is None or value is None:
        return run + " " * 16
    return run + f"{100 * best:8.1f}{100 * value / best:7.0f}%"


def _named(condition: str, components: Sequence[str]) -> str:
    if condition == "with_meta":
        return "all" if components else "none"
    return "masked: all" if condition == "without_meta" else "masked: " + condition.removeprefix("mask_").replace("_", "+").lower()
