"""Make doctor.html: the findings with photographs of their rows, and a chart of the rows of each taxon. It is one file that makes no
network request."""

from collections.abc import Sequence
from html import escape

import numpy as np

from linnaeus.errors import counted, escaped
from linnaeus.reporting.charts import BLUE, Chart, Scale, element
from linnaeus.reporting.formatting import format_tick
from linnaeus.reporting.report.html_parts import Section
from linnaeus.reporting.report.page import sections_page
from linnaeus.workloads.taxonomy.doctor.counts import RankCounts
from linnaeus.workloads.taxonomy.doctor.findings import SEVERITIES, Finding, Inspected, cells_text
from linnaeus.workloads.taxonomy.doctor.possible_filters import FilterCount
from linnaeus.workloads.taxonomy.images.image_files import ImageFiles
from linnaeus.workloads.taxonomy.images.integrity import NotAnImage
from linnaeus.workloads.taxonomy.report.thumbnails import SIDE, image_element, thumbnail

SHOWN, SHOWN_IN_ALL = 12, 240  # most rows shown with a photograph, per finding and per page; a photograph takes about 6 kB
WIDTH, HEIGHT, LEFT, BELOW = 560, 300, 52, 34  # pixels of the chart
POINTS = 200  # most points of a line of the chart


def doctor_page(
    title: str, records: Inspected, counts: Sequence[RankCounts], filters: Sequence[FilterCount], findings: Sequence[Finding]
) -> str:
    """Return the HTML document of the report: the findings with photographs, a chart of the rows of each taxon, and the filters."""
    room = SHOWN_IN_ALL
    bodies = []
    for number, finding in enumerate(findings):
        photographs = 1 if finding.beside is None else 2  # of a row
        most = min(SHOWN, room // photographs, len(finding.rows))
        room -= most * photographs
        bodies.append(_finding(number, finding, records, most))
    header = f'<header><h1>The doctor</h1><p class="sub">{escape(escaped(title))}</p></header>{_cards(records, counts, findings)}'
    sections = [
        Section("Findings", _overview(findings) if findings else '<p class="empty">Nothing was found.</p>'),
        Section("Ranks", f'<div class="card">{_table(counts)}</div><div class="charts">{tail_chart(counts)}</div>'),
        *([Section("Filters that are not set", f'<div class="card">{_table(filters)}</div>')] if filters else []),
        *([Section("Rows of the findings", "".join(bodies))] if findings else []),  # the longest section is the last
    ]
    return sections_page(f"doctor: {title}", header, sections)


def _cards(records: Inspected, counts: Sequence[RankCounts], findings: Sequence[Finding]) -> str:
    """Return HTML with the numbers of rows, of taxa of the finest rank, and of findings by severity."""
    numbers = [(len(records), "rows")] + [(len(c.sizes), f"taxa: {c.rank}") for c in counts[-1:]]
    numbers += [(sum(f.severity == severity for f in findings), f"{severity}s") for severity in SEVERITIES]
    return f'<div class="hero">{"".join(f"<div><b>{n:,}</b><span>{escape(escaped(words))}</span></div>" for n, words in numbers)}</div>'


def _overview(findings: Sequence[Finding]) -> str:
    """Return the HTML table of all findings with their meanings. Each links to its rows."""
    rows = "".join(
        f'<tr><td class="words">{_badge(f)} <a href="#finding{i}">{escape(escaped(f.check))}</a>'
        f"<br>{escape(escaped(f.text))}</td><td>{f'{len(f.rows):,}' if len(f.rows) else ''}</td></tr>"
        for i, f in enumerate(findings)
    )
    head = '<tr><th class="words">finding</th><th>rows</th></tr>'
    return f'<div class="card"><table>{head}{rows}</table></div>'


def _badge(finding: Finding) -> str:
    return f'<span class="status {finding.severity}">{finding.severity}</span>'


def _finding(number: int, finding: Finding, records: Inspected, most: int) -> str:
    """Return HTML with the heading of a finding and its first `most` rows. Each row has its photograph, or the reason why the photograph
    cannot be shown."""
    if not len(finding.rows):
        return f'<h3 id="finding{number}">{_badge(finding)} {escape(escaped(finding.check))}</h3>'
    shown = []
    for i, row in enumerate(finding.rows[:most].tolist()):
        pictures = photograph(records.files, row, records)
        pictures += photograph(records.files, int(finding.beside[i]), records) if finding.beside is not None else ""
        detail = escape(escaped(finding.details[i] if finding.details else cells_text(records, finding, row)))
        name = escape(escaped(str(records.files.names[row])))
        words = "<br>".join(filter(None, (name, _taxon(records, row), detail)))
        shown.append(f'<figure>{pictures}<figcaption>row {records.row_numbers[row]}<span class="note">{words}</span></figcaption></figure>')
    rest = len(finding.rows) - most
    more = f'<p class="sub">and {counted(rest, "more row")}, in findings.csv</p>' if rest else ""
    count = counted(len(finding.rows), "row")
    title = f'<h3 id="finding{number}">{_badge(finding)} {escape(escaped(finding.check))}: {count}</h3>'
    return f'{title}<div class="gallery">{"".join(shown)}</div>{more}'


def _taxon(records: Inspected, row: int) -> str:
    """Return the name of the finest label of a row, escaped for HTML; "no label" without a label."""
    known = np.flatnonzero(records.labels[row] >= 0)
    return escape(escaped(records.tree.names[known[-1]][records.labels[row, known[-1]]])) if len(known) else "no label"


def photograph(files: ImageFiles, row: int, records: Inspected) -> str:
    """Return an HTML image with the photograph of a row, or a box with the reason if the photograph cannot be shown."""
    if records.sizes[row] <= 0:
        return '<div class="none">no photograph</div>'
    try:
        pixels = files.decode(row, SIDE, records.config.max_image_pixels)
    except (NotAnImage, OSError):
        return '<div class="none">cannot be decoded</div>'
    return image_element(thumbnail(pixels))


def _table(counts: Sequence[RankCounts] | Sequence[FilterCount]) -> str:
    """Return the HTML table of the ranks, or of the filters, with a line for each."""
    head = "".join(f"<th>{heading}</th>" for heading in counts[0].cells())
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in c.cells().values()) + "</tr>" for c in counts)
    return f"<table><tr>{head}</tr>{lines}</table>"


def tail_chart(counts: Sequence[RankCounts]) -> str:
    """Return an HTML figure: for each rank a line with the number of rows of each taxon, the largest taxon first, on logarithmic axes."""
    x = Scale(0.9, 1.1 * max(len(c.sizes) for c in counts), LEFT, WIDTH - 10, log=True)
    y = Scale(0.8, 1.3 * max(int(c.sizes[0]) for c in counts), HEIGHT - BELOW, 12, log=True)
    chart = Chart(x, y)
    chart.y_axis({tick: format_tick(tick) for tick in y.ticks(6) if tick >= 1})
    chart.x_axis({tick: format_tick(tick) for tick in x.ticks(6) if tick >= 1}, above=-16)
    for number, c in enumerate(counts):
        at = np.unique(np.geomspace(1, len(c.sizes), POINTS).astype(np.int64))
        points = [(float(i), float(c.sizes[i - 1])) for i in at.tolist()]
        chart.curve(points, BLUE, f"s{number % 8}")
    keys = "".join(f'<span class="key"><i class="b{i % 8}"></i>{escape(escaped(c.rank))}</span>' for i, c in enumerate(counts))
    picture = element("svg", "".join(chart.parts), viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label="rows of each taxon")
    return (
        '<figure class="chart"><figcaption>Rows of each taxon<span class="note">the largest taxon at the left</span></figcaption>'
        f'<div class="legend">{keys}</div>{picture}</figure>'
    )
