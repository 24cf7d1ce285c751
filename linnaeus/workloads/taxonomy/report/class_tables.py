"""Make the section about the accuracy by class: a table by number of training labels, a scatter plot, and the classes with the lowest
accuracy.
"""

from html import escape

from linnaeus.reporting.charts import BLUE, Chart, Scale
from linnaeus.reporting.formatting import format_tick
from linnaeus.reporting.report.html_parts import Cell, Column, count_cell, explained, number, picture_of_marks, share_cell, table, text_cell
from linnaeus.reporting.report.metric_names import meaning, metric_name
from linnaeus.workloads.taxonomy.report.answer_tables import AnswerTables, Taxon

BUCKETS = ("many", "medium", "few")
MOST = 500  # rows of a table
DOTS = 2000  # classes in the scatter plot, those with the most samples
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 270, 66, 14, 14, 36


def class_tables(tables: AnswerTables) -> str:
    """Return the HTML of the section about the accuracy by class; "" if the table of classes and the metrics by bucket are missing.

    It has a table by buckets (classes with many, medium or few training labels), a scatter plot, and a table of the classes with the lowest
    accuracy."""
    own = [taxon for taxon in tables.taxa.values() if taxon.rank == tables.finest and taxon.samples]
    return f'<div class="columns">{_buckets(tables)}{_picture(tables, own)}</div>{_worst(tables, own)}' if own else _buckets(tables)


def _buckets(tables: AnswerTables) -> str:
    """Return an HTML table of the mean accuracy over classes; "" without values.

    A row is a taxonomic rank. A column is a bucket that has a value: classes with many, medium or few training labels."""
    shown = [b for b in BUCKETS if any(tables.value(f"{rank}/{b}") is not None for rank in tables.ranks)]
    rows = []
    for rank in reversed(tables.ranks):
        values = {b: tables.value(f"{rank}/{b}") for b in shown}
        cells = [Cell(number(f"{tables.normal}/{rank}/{b}", value), value) for b, value in values.items()]
        rows.append([text_cell(rank), *cells, *([_class_numbers(tables, rank)] if tables.taxa else [])])
    columns = [Column("rank", words=True), *(Column(metric_name(b), meaning(b)) for b in shown)]
    columns += [Column("classes", "Number of classes with validation samples, of all classes.")] if tables.taxa else []
    return f"<div>{table('Mean accuracy by number of training labels', columns, rows, sortable=False)}</div>" if shown else ""


def _class_numbers(tables: AnswerTables, rank: str) -> Cell:
    counts = [taxon.samples for taxon in tables.taxa.values() if taxon.rank == rank]
    return Cell(f"{sum(count > 0 for count in counts):,} of {len(counts):,}", len(counts))


def _picture(tables: AnswerTables, own: list[Taxon]) -> str:
    """Return a scatter plot of accuracy over number of training labels. A dot is a class; its area grows with the number of validation
    samples.

    `own`: classes of the finest rank with validation samples. Only the `DOTS` classes with the most samples are drawn."""
    x = Scale.around([max(taxon.training, 0.9) for taxon in own], LEFT, WIDTH - RIGHT, log=True, margin=0.06)
    chart = Chart(x, Scale(-0.04, 1.04, HEIGHT - BOTTOM, TOP))
    chart.y_axis({share: f"{share:.0%}" for share in (0.0, 0.25, 0.5, 0.75, 1.0)})
    chart.x_axis({tick: format_tick(tick) for tick in x.ticks(6) if tick == round(tick)}, above=-17)
    chart.text(WIDTH - RIGHT, HEIGHT - 3, "training labels", "end")
    largest = max(taxon.samples for taxon in own)
    for taxon in sorted(own, key=lambda taxon: -taxon.samples)[:DOTS]:
        text = f"{taxon.name}: {taxon.right} of {taxon.samples} right, {taxon.training} training labels"
        radius = 2 + 5 * (taxon.samples / largest) ** 0.5
        chart.dot(max(taxon.training, 0.9), taxon.accuracy or 0.0, BLUE, "s0", radius, data_about=text)
    label = f"Accuracy of {len(own)} classes over their numbers of training labels; the values are in the table of classes"
    picture = picture_of_marks(chart, WIDTH, HEIGHT, label)
    about = "A dot is a class. The larger the dot, the more validation samples."
    caption = explained(f"Accuracy of each {tables.finest} over its training labels", about)
    return f'<figure class="chart"><figcaption>{caption}</figcaption>{picture}</figure>'


def _worst(tables: AnswerTables, own: list[Taxon]) -> str:
    ordered = sorted(own, key=lambda taxon: (taxon.accuracy, -taxon.samples, taxon.name))
    rows = [
        [
            Cell(f"<i>{escape(taxon.name)}</i>", taxon.name),
            share_cell(taxon.accuracy, 0),
            count_cell(taxon.right),
            count_cell(taxon.samples),
            count_cell(taxon.predicted),
            count_cell(taxon.training),
            text_cell(" › ".join(tables.taxa[lineage].name for lineage in tables.path(taxon.lineage)[:-1])),
        ]
        for taxon in ordered[:MOST]
    ]
    columns = [
        Column(tables.finest, words=True),
        Column("accuracy"),
        Column("right"),
        Column("samples", "Validation samples with this label."),
        Column("predicted", "Number of predictions of this class."),
        Column("training", "Training labels of this class."),
        Column("lineage", "Taxa above this class.", words=True),
    ]
    note = f'<p class="sub">The {MOST} lowest of {len(own):,} classes; all are in validation/.</p>' if len(own) > MOST else ""
    return table("Classes, the lowest accuracy first", columns, rows, shown=12) + note
