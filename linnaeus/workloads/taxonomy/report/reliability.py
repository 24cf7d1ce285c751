"""Make the reliability diagrams, one per taxonomic rank: the share of right predictions (y) over the stated confidence (x)."""

from collections.abc import Sequence
from html import escape

from linnaeus.reporting.charts import BLUE, Chart, Scale
from linnaeus.reporting.report.html_parts import number, picture_of_marks
from linnaeus.reporting.report.run_files import Rows
from linnaeus.workloads.taxonomy.report.answer_tables import AnswerTables

SIDE, LEFT, BOTTOM, TOP = 300, 50, 40, 10


def reliability(tables: AnswerTables) -> str:
    """Return the HTML of the section with the reliability diagrams, one per taxonomic rank, the finest first; "" without the table
    `reliability`."""
    rows = tables.run.table("reliability")
    figures = [_diagram(tables, rank, [row for row in rows if row["rank"] == rank]) for rank in reversed(tables.ranks)]
    found = "".join(figure for figure in figures if figure)
    return (
        f'<div class="gallery diagrams" style="grid-template-columns:repeat(auto-fill,minmax(min(100%,250px),1fr))">{found}</div>'
        if found
        else ""
    )


def _diagram(tables: AnswerTables, rank: str, rows: Rows) -> str:
    if not rows:
        return ""
    chart = Chart(Scale(0, 1, LEFT, SIDE - 20), Scale(0, 1, SIDE - BOTTOM, TOP))
    chart.y_axis({share: f"{share:.0%}" for share in (0.0, 0.25, 0.5, 0.75, 1.0)})
    chart.x_axis({share: f"{share:.0%}" for share in (0.0, 0.5, 1.0)}, above=-17)
    chart.text((LEFT + SIDE) / 2, SIDE - 5, "stated confidence", "middle")
    chart.add("line", class_="mark", x1=chart.x(0), y1=chart.y(0), x2=chart.x(1), y2=chart.y(1), stroke_dasharray="4 4")
    total = sum(int(row["samples"]) for row in rows)
    points = [(float(row["confidence"]), float(row["right"]), int(row["samples"])) for row in rows]
    chart.curve([(x, y) for x, y, _ in points], BLUE, "s0 faint")
    for x, y, samples in points:
        chart.dot(x, y, BLUE, "s0", 2.5 + 11 * (samples / total) ** 0.5, data_about=_described([(x, y, samples)]))
    key = f"{tables.normal}/{rank}/ece"
    caption = f'{escape(rank)}<span class="note">calibration error {number(key, tables.final.get(key))}</span>'
    label = f"Reliability at {rank}: {_described(points)}"
    return f"<figure><figcaption>{caption}</figcaption>{picture_of_marks(chart, SIDE, SIDE, label)}</figure>"


def _described(points: Sequence[tuple[float, float, int]]) -> str:
    return "; ".join(f"stated {100 * x:.0f} %, right {100 * y:.0f} % of {n}" for x, y, n in points)
