"""Format the results of `linnaeus evaluate --manifest` as lines of text for a terminal of 80 columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from linnaeus.errors import counted, escaped
from linnaeus.reporting.formatting import shorten
from linnaeus.workloads.taxonomy.metrics.accuracy_table import accuracy_table
from linnaeus.workloads.taxonomy.trained.evaluate.evaluation_files import Tables
from linnaeus.workloads.taxonomy.trained.evaluate.measured import Measured
from linnaeus.workloads.taxonomy.trained.evaluate.paired_differences import Compared

SHOWN = 12  # most rows per kind of group; the files have all
LABEL = 34  # width of the column of names


def model_lines(measured: Measured, tables: Tables) -> list[str]:
    """Return all tables of the results of one model as lines of text."""
    tree = measured.model.tree
    return [
        *accuracy_table(tree.ranks, measured.model.components, measured.metrics, {}),
        "",
        *_rank_lines(measured, tables),
        "",
        *_part_lines(tables.parts, tree.ranks[-1]),
        *_precision_lines(tables.precisions),
        *_outside_lines(tables.outside),
    ]


def _rank_lines(measured: Measured, tables: Tables) -> list[str]:
    """Return a header and a line per rank: numbers of photographs that are scored and not scored, top-5 accuracy, loss and calibration
    error.

    Not scored are photographs of a taxon that the model does not have or a restriction excludes; without a restriction the column is
    called `unknown taxon`. These are results with metadata. For a calibrated model, the column `ece/T` has the calibration error after
    the temperatures."""
    everything, calibrated = tables.parts[0], bool(tables.tempered)
    title = "unknown taxon" if measured.model.restriction is None else "not scored"
    head = f"{'rank':18s}{'scored':>10s}{title:>15s}{'top-5':>9s}{'loss':>9s}{'ece':>9s}"
    lines = [head + f"{'ece/T':>9s}" * calibrated]
    for r, rank in reversed(list(enumerate(measured.model.tree.ranks))):
        top5, loss, ece = (measured.metrics[f"val/{rank}/{name}"] for name in ("top5", "loss", "ece"))
        unscored = int(measured.labels.unscored[:, r].sum())
        cells = f"{everything[f'{rank}/photographs']:10,d}{unscored:15,d}{_percent(top5, 9)}{_plain(loss, 9, 4)}{_percent(ece, 9)}"
        with_temperature = _percent(tables.tempered[f"{rank}/ece"], 9) if calibrated else ""
        lines.append(f"{shorten(rank, 18):18s}{cells}{with_temperature}")
    return lines


def _part_lines(parts: Sequence[Mapping[str, Any]], rank: str) -> list[str]:
    """Return a header, and a line with the metrics of `rank` for each of the `SHOWN` largest groups of photographs of each kind."""
    titles = f"{'photos':>8s}{'top-1':>7s}{'95 %':>13s}{'top-5':>7s}{'hd1':>6s}{'ece':>5s}"
    lines = [f"{shorten(f'part, metrics of {rank}', LABEL):{LABEL}s}{titles}"]
    for kind in dict.fromkeys(str(part["kind"]) for part in parts):
        own = sorted((part for part in parts if part["kind"] == kind), key=lambda part: -part["photographs"])
        for part in own[:SHOWN]:
            name = str(part["name"]) if kind in ("all", "metadata") else f"{kind}: {part['name']}"
            cells = f"{part['photographs']:8,d}{_percent(part[f'{rank}/top1'], 7)}{_interval(part, f'{rank}/top1')}"
            cells += f"{_percent(part[f'{rank}/top5'], 7)}{_plain(part['hd1'], 6, 2)}{_percent(part[f'{rank}/ece'], 5, 0)}"
            lines.append(f"{shorten(escaped(name), LABEL - 1):{LABEL}s}{cells}")
        if len(own) > SHOWN:
            lines.append(f"{kind}: {len(own) - SHOWN:,} more in groups.csv of --output")
    return lines


def _precision_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a header and a line per stated precision; [] if the model is not calibrated."""
    if not rows:
        return []
    lines = ["", f"{'answers for photographs of':28s}{'stated':>8s}{'precision':>11s}{'95 %':>14s}{'answered':>10s}{'95 %':>9s}"]
    for row in rows:
        own = _plain(100 * row["precision"], 11, 1) + _ends(row, "precision", 14) + _plain(100 * row["answered"], 10, 1)
        lines.append(f"{row['photographs of']:28s}{100 * row['stated']:8.3g}{own}{_ends(row, 'answered', 9, 0)}")
    return lines


def _outside_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a header and a line for each kind of photographs (in or outside the model's taxa); [] if all photographs are of the model's
    taxa."""
    if len(rows) < 2:
        return []
    lines = ["", f"{'familiarity of photographs':28s}{'photos':>8s}{'AUROC':>11s}{'95 %':>14s}{'none of these':>15s}"]
    for row in rows:
        cells = _plain(row["auroc"], 11, 3) + _ends(row, "auroc", 14, 1) + _plain(100 * row["none of these"], 15, 1)
        lines.append(f"{shorten(row['photographs of'], 27):28s}{row['photographs']:8,d}{cells}")
    return lines


def _ends(row: Mapping[str, Any], name: str, width: int, digits: int = 1) -> str:
    """Return the interval of the metric `name` in percent as text of `width` characters, such as "81.2-84.0"; "-" if an end is NaN."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    text = "-" if math.isnan(low) or math.isnan(high) else f"{100 * low:.{digits}f}-{100 * high:.{digits}f}"
    return f"{text:>{width}s}"


def difference_lines(compared: Compared) -> list[str]:
    """Return the lines of a table with a metric per line: the value of the first model, the value of the other model, and the difference.

    The last line has the number of photographs on which the predicted taxa differ."""
    head = f"{'metric':28s}{'MODEL':>10s}{'OTHER':>10s}{'difference':>12s}{'95 %':>20s}"
    lines = [f"OTHER: {escaped(compared.name)}", head]
    for row in compared.differences:
        ends = (row["low"], row["high"])
        interval = "-" if any(map(math.isnan, ends)) else f"{ends[0]:+.4f}..{ends[1]:+.4f}"
        change = "-" if math.isnan(row["difference"]) else f"{row['difference']:+.4f}"
        lines.append(
            f"{shorten(row['metric'], 28):28s}{_plain(row['first'], 10, 4)}{_plain(row['other'], 10, 4)}{change:>12s}{interval:>20s}"
        )
    lines.append(f"{counted(compared.photographs, 'photograph')}; the predicted taxa differ on {len(compared.disagreements):,}")
    return lines


def _percent(value: float, width: int, digits: int = 1) -> str:
    return _plain(100 * value, width, digits)


def _plain(value: float, width: int, digits: int) -> str:
    return f"{'-':>{width}s}" if math.isnan(value) else f"{value:{width}.{digits}f}"


def _interval(part: Mapping[str, Any], name: str) -> str:
    low, high = part[f"{name}_low"], part[f"{name}_high"]
    return f"{'-' if math.isnan(low) or math.isnan(high) else f'{100 * low:.1f}-{100 * high:.1f}':>13s}"
