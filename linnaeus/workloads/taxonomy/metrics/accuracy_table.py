"""Format the tables at the end of a run: accuracy per validation pass and rank, metrics of whole predictions, and the cost of masking
metadata.

A ceiling is the best possible accuracy, which is known only for generated data. Metrics of whole predictions are the metrics of paths,
distances in the tree, and calibration. The cost of masking is computed over the rows that have the masked metadata."""

import math
from collections.abc import Mapping, Sequence

from linnaeus.reporting.formatting import fit, format_percent

COLUMNS = {"top1": "top1", "macro": "macro_top1"}  # last part of a ceiling's name -> metric
LABELS = f"{'metadata':32s}{'rank':14s}"
PLAIN_HEAD = [LABELS + f"{'top-1':>8s}{'macro':>8s}{'top-1, 95 %':>13s}"]
CEILING_HEAD = [
    f"{'':46s}{'top-1':^22s}{'macro':^22s}{'top-1':>13s}",
    LABELS + f"{'run':>6s}{'best':>8s}{'share':>8s}" * 2 + f"{'95 %':>13s}",
]
PERCENT, PLAIN = (100.0, 1), (1.0, 2)  # factor and number of decimals

# Title -> metric and format; "{finest}" is the finest rank.
PASS_METRICS = {
    "chain": ("chain", PERCENT),
    "incons.": ("inconsistent", PERCENT),
    "hd1": ("hd1", PLAIN),
    "hd5": ("hd5", PLAIN),
    "hd20": ("hd20", PLAIN),
    "severity": ("severity", PLAIN),
    "crm hd5": ("crm_hd5", PLAIN),
    "ece": ("{finest}/ece", PERCENT),
    "aurc": ("aurc", PERCENT),
}


def validated_passes(final: Mapping[str, float]) -> dict[str, str]:
    """Return a dict from the prefix of the metric names of each validation pass in `final`, such as "val" or "val_mask_meta", to the
    condition of the pass.

    A condition is "with_meta", "without_meta", or names the masked components, such as "mask_SPATIAL"."""
    found = {}
    for key in final:
        prefix = key.split("/")[0]
        plain = prefix.replace("val_ema", "val", 1)
        found[prefix] = {"val": "with_meta", "val_mask_meta": "without_meta"}.get(plain, plain.removeprefix("val_"))
    return found


def accuracy_table(ranks: Sequence[str], components: Sequence[str], final: Mapping[str, float], ceilings: Mapping[str, float]) -> list[str]:
    """Return the lines of three tables. `final`: name -> value of the last metrics. `ceilings`: name -> best possible value; {}: unknown.

    Table 1 has a line per validation pass and rank, finest rank first, in percent: accuracy, its ceiling and their quotient if known, and
    the 95 % interval of top-1. Table 2 has a line per pass: the metrics of whole predictions. Table 3 is for data with missing metadata. It
    has a line per pass that masks metadata and per rank: top-1 of the normal pass and of the masked pass, over the rows that have the
    masked metadata."""
    if not final:
        return []
    costs = _cost_table(ranks, final)
    return [*_rank_table(ranks, components, final, ceilings), "", *_pass_table(ranks, components, final), *(["", *costs] if costs else [])]


def accuracy_headline(ranks: Sequence[str], final: Mapping[str, float], ceilings: Mapping[str, float]) -> list[str]:
    """Return lines of text with the most important accuracies. The arguments are as in `accuracy_table`.

    Line 1: top-1 of the finest rank, its 95 % interval, its ceiling if known, and top-1 without metadata. Line 2, if some rows have no
    metadata: top-1 of the finest rank, with and without metadata, over the rows that have metadata. Line 3: top-1 of the other ranks."""
    prefix = "val_ema" if any(name.startswith("val_ema/") for name in final) else "val"
    found = {rank: final[f"{prefix}/{rank}/top1"] for rank in reversed(ranks) if f"{prefix}/{rank}/top1" in final}
    if not found:
        return []
    (finest, value), *others = found.items()
    text = f"{finest} {format_percent(value)}"
    low, high = (final.get(f"{prefix}/{finest}/top1_{end}", math.nan) for end in ("low", "high"))
    if not math.isnan(low) and not math.isnan(high):
        text += f" [{100 * low:.1f}, {100 * high:.1f}]"
    if f"with_meta/{finest}/top1" in ceilings:
        text += f" of {100 * ceilings[f'with_meta/{finest}/top1']:.1f} possible"
    masked = final.get(f"{prefix}_mask_meta/{finest}/top1")
    lines = [f"{text}; without metadata {100 * masked:.1f}" if masked is not None else text]
    normal, masked = (final.get(f"{key}/{finest}/with_meta_top1", math.nan) for key in (prefix, f"{prefix}_mask_meta"))
    if not math.isnan(normal) and not math.isnan(masked):
        lines.append(f"rows with metadata: {finest} {format_percent(normal)}; without metadata {100 * masked:.1f}")
    return lines + ([fit([f"{rank} {format_percent(top1)}" for rank, top1 in others], 79)] if others else [])


def _rank_table(ranks: Sequence[str], components: Sequence[str], final: Mapping[str, float], ceilings: Mapping[str, float]) -> list[str]:
    lines = list(CEILING_HEAD if ceilings else PLAIN_HEAD)
    for prefix, condition in validated_passes(final).items():
        for rank in reversed(ranks):
            cells = ""
            for column, metric in COLUMNS.items():
                value = final.get(f"{prefix}/{rank}/{metric}", math.nan)
                best = ceilings.get(f"{condition}/{rank}/{column}")
                cells += _value_and_ceiling(value, best) if ceilings else _number(value, PERCENT, 8)
            cells += _interval(final, f"{prefix}/{rank}/top1")
            lines.append(f"{_condition_label(condition, components):32s}{rank:14s}{cells}")
    return lines


def _pass_table(ranks: Sequence[str], components: Sequence[str], final: Mapping[str, float]) -> list[str]:
    """Return a header and one line per validation pass in `final`: the metrics of PASS_METRICS, NaN for a metric that is not in `final`.

    Shares are in percent, distances in the tree in taxonomic ranks."""
    width = {title: max(len(title) + 1, 6) for title in PASS_METRICS}
    labels = {prefix: _condition_label(condition, components) for prefix, condition in validated_passes(final).items()}
    first = max(map(len, ["metadata", *labels.values()]))  # with one masked component, a line has fewer than 80 columns
    lines = [f"{'metadata':{first}s}" + "".join(f"{title:>{width[title]}s}" for title in PASS_METRICS)]
    for prefix, label in labels.items():
        cells = ""
        for title, (metric, form) in PASS_METRICS.items():
            cells += _number(final.get(f"{prefix}/{metric.format(finest=ranks[-1])}", math.nan), form, width[title])
        lines.append(f"{label:{first}s}{cells}")
    return lines


def _cost_table(ranks: Sequence[str], final: Mapping[str, float]) -> list[str]:
    """Return a header and a line per masked pass and rank: top-1 of the normal pass and of the masked pass, over the rows that have the
    masked metadata.

    Return [] if no pass is masked, or if all rows have the metadata: then the first table shows the same numbers."""
    lines = []
    for prefix in validated_passes(final):
        base, _, name = prefix.partition("_mask_")
        for rank in reversed(ranks):
            normal, masked = (final.get(f"{key}/{rank}/with_{name}_top1", math.nan) for key in (base, prefix))
            if name and not math.isnan(normal) and not math.isnan(masked):
                having = "with any metadata" if name == "meta" else "with " + name.replace("_", " or ").lower()
                cells = "".join(_number(value, PERCENT, 8) for value in (normal, masked)) + _number(masked - normal, PERCENT, 12)
                lines.append(f"{having:32s}{rank:14s}{cells}")
    return [f"{'rows':32s}{'rank':14s}{'top-1':>8s}{'masked':>8s}{'difference':>12s}", *lines] if lines else []


def _value_and_ceiling(value: float, best: float | None) -> str:
    run = _number(value, PERCENT, 6)
    if best is None or math.isnan(value):
        return run + " " * 16
    return run + f"{100 * best:8.1f}{100 * value / best:7.0f}%"


def _interval(final: Mapping[str, float], name: str) -> str:
    low, high = final.get(f"{name}_low", math.nan), final.get(f"{name}_high", math.nan)
    text = "-" if math.isnan(low) or math.isnan(high) else f"{100 * low:.1f}-{100 * high:.1f}"
    return f"{text:>13s}"


def _number(value: float, form: tuple[float, int], width: int) -> str:
    factor, digits = form
    return f"{'-':>{width}s}" if math.isnan(value) else f"{factor * value:{width}.{digits}f}"


def _condition_label(condition: str, components: Sequence[str]) -> str:
    if condition == "with_meta":
        return "all" if components else "none"
    return "without metadata" if condition == "without_meta" else "without " + condition.removeprefix("mask_").replace("_", "+").lower()
