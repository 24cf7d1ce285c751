"""Make the section about the most frequent confusions of two classes, with photographs and the lowest common taxon of the two classes."""

from html import escape

from linnaeus.reporting.report.html_parts import Cell, Column, count_cell, share_cell, table, text_cell
from linnaeus.workloads.taxonomy.report.answer_tables import AnswerTables, times
from linnaeus.workloads.taxonomy.report.sample_table import taxon_name
from linnaeus.workloads.taxonomy.report.thumbnails import image_element

MOST = 300  # rows of the table


def confused_pairs(tables: AnswerTables) -> str:
    """Return the HTML of the section about the most frequent confusions: figures with photographs, and a table of at most `MOST` pairs of
    classes.

    Return "" without confusions."""
    rows = tables.run.table("confusions")
    pictures = "".join(_pair(tables, pair, row) for pair, row in zip(tables.examples.get("pairs", ()), rows, strict=False))
    columns = [
        Column("label", words=True),
        Column("predicted", words=True),
        Column("times"),
        Column("share", "Of the samples with this label."),
    ]
    columns += [
        Column("common taxon", "The lowest taxon that contains both.", words=True),
        Column("distance", "Ranks from the prediction up to the common taxon."),
    ]
    cells = [
        [
            *(Cell(f"<i>{escape(taxon_name(row[name]))}</i>", taxon_name(row[name])) for name in ("label", "predicted")),
            count_cell(int(row["count"])),
            share_cell(float(row["share"]), 0),
            text_cell(_common(tables, row["common"])),
            count_cell(int(row["height"])),
        ]
        for row in rows[:MOST]
    ]
    note = f'<p class="sub">The first {MOST} of {len(rows):,} pairs; all are in validation/.</p>' if len(rows) > MOST else ""
    return (f'<div class="pairs">{pictures}</div>' if pictures else "") + table("Confused pairs", columns, cells, shown=12) + note


def _common(tables: AnswerTables, lineage: str) -> str:
    taxon = tables.taxa.get(lineage)
    return f"{taxon_name(lineage)}{f' ({taxon.rank})' if taxon else ''}" if lineage else "no common taxon"


def _pair(tables: AnswerTables, pair: dict, row: dict[str, str]) -> str:
    """Return a figure of a confusion of two classes: at most two confused validation samples, and a training photograph of each class.

    pair: entry of `pairs` in photographs.json. row: row of this confusion in the table of confusions."""
    label, predicted = taxon_name(pair["label"]), taxon_name(pair["predicted"])
    photos = [_photo(tables, f"validation/{n}", f"a photograph of {label}, predicted as {predicted}", "confused") for n in pair["samples"]]
    photos += [
        _photo(tables, f"training/{lineage}", f"training photograph of {taxon_name(lineage)}", taxon_name(lineage))
        for lineage in (pair["label"], pair["predicted"])
    ]
    meet = f"common taxon: {_common(tables, row['common'])}" if row["common"] else "no common taxon"
    often = times(int(row["count"])).capitalize()
    words = f"{often}, {100 * float(row['share']):.0f} % of its samples; {meet}"
    return (
        f'<figure class="pair"><figcaption><i>{escape(label)}</i> predicted as <i>{escape(predicted)}</i></figcaption>'
        f'<small>{escape(words)}</small><div class="photos">{"".join(photos)}</div></figure>'
    )


def _photo(tables: AnswerTables, key: str, alternative: str, caption: str) -> str:
    webp = tables.photograph(key).get("webp")
    picture = image_element(webp, alternative) if webp else '<div class="none">no photograph</div>'
    return f"<div>{picture}<small>{escape(caption)}</small></div>"
