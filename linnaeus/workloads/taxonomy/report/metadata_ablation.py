"""Make the section about metadata: accuracy without each component, such as the place, and its difference from the accuracy with all
inputs, paired by sample.
"""

import math

from linnaeus.reporting.report.html_parts import Cell, Column, count_cell, number, table, text_cell
from linnaeus.reporting.report.metric_names import column_name
from linnaeus.reporting.report.metric_tables import difference
from linnaeus.reporting.report.run_files import Rows
from linnaeus.workloads.taxonomy.report.answer_tables import AnswerTables


def metadata_ablation(tables: AnswerTables) -> str:
    """Return the HTML of the section about metadata: a table of the accuracy at each rank, with a row per validation pass that masks
    metadata.

    Return "" without such a pass."""
    masking = [name for name in tables.passes if "_mask_" in name]
    ranks = list(reversed(tables.ranks))
    normal = [row for row in tables.run.table("samples") if row.get("answer_1") != ""]  # without those that were not validated
    rows = []
    for name in masking:
        cells = [text_cell(column_name(name)), _concerned(normal, name)]
        rows.append(cells + [_cell(tables, name, rank) for rank in ranks])
    columns = [
        Column("inputs", words=True),
        Column("samples that have them", "Validation samples with this metadata. Masking has no effect on the others."),
    ]
    about = "Accuracy of all samples without the component, and the difference from all inputs with its 95 % interval, paired by sample."
    columns += [Column(f"right {rank}", about) for rank in ranks]
    whole = [text_cell("all inputs"), count_cell(len(normal) or None)]
    whole += [Cell(number(f"{tables.normal}/{rank}/top1", tables.value(f"{rank}/top1")), tables.value(f"{rank}/top1")) for rank in ranks]
    note = (
        "" if normal else '<p class="sub">Only aggregate results are saved, so there are no paired intervals and nothing is coloured.</p>'
    )
    return table("Without place, date and elevation", columns, [whole, *rows], sortable=False) + note if rows else ""


def _concerned(rows: Rows, name: str) -> Cell:
    """Return a table cell: the number of validation samples that have at least one of the metadata components masked in the pass `name`.

    name: such as `val_mask_SPATIAL`; `val_mask_meta` masks all components. rows: table of samples; if empty, the cell is an en dash."""
    masked = name.partition("_mask_")[2]
    names = None if masked == "meta" else set(masked.split("_"))
    own = [row["metadata"].split() for row in rows]
    return count_cell(sum(bool(found) if names is None else bool(names & set(found)) for found in own) if rows else None)


def _cell(tables: AnswerTables, name: str, rank: str) -> Cell:
    """Return a table cell for the pass `name` at a rank: the accuracy, its difference from the normal pass, and the interval of the
    difference.

    An unknown difference or interval is left out."""
    key = f"{name}/{rank}/top1"
    value, whole = tables.final.get(key), tables.value(f"{rank}/top1")
    html = number(key, value)
    if value is None or whole is None:
        return Cell(html, value)
    low, high = tables.run.differences.get(key, (-math.inf, math.inf))
    html += difference(key, value - whole, 0.0 if low > 0 or high < 0 else math.inf)
    ends = f'<span class="interval">{100 * low:+.1f} to {100 * high:+.1f}</span>' if math.isfinite(low) else ""
    return Cell(html + ends, value)
