"""Print the report of the doctor on the terminal: the ranks, the filters and the findings, one line each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from linnaeus.errors import escaped
from linnaeus.reporting.formatting import WIDTH
from linnaeus.workloads.taxonomy.doctor.counts import RankCounts
from linnaeus.workloads.taxonomy.doctor.findings import Finding
from linnaeus.workloads.taxonomy.doctor.possible_filters import FilterCount

if TYPE_CHECKING:
    from rich.table import Table

COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}


def print_findings(title: str, counts: Sequence[RankCounts], filters: Sequence[FilterCount], findings: Sequence[Finding]) -> None:
    """Print the title and the tables of the ranks, the filters and the findings."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else WIDTH, highlight=False)
    with console.capture() as page:  # the cells of a table are padded with blanks, also at the end of a line
        console.print(Text(escaped(title)))
        for lines in (counts, filters):
            if lines:
                console.print(_count_table(lines))
        console.print(_finding_table(findings) if findings else Text("nothing was found"))
    print("\n".join(line.rstrip() for line in page.get().splitlines()))


def _table(columns: dict[str, bool]) -> Table:
    """Return an empty table with the given headings. `columns`: heading -> True if the column contains numbers, which are aligned at the
    right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading, number in columns.items():
        table.add_column(heading, justify="right" if number else "left", no_wrap=number, overflow="fold")
    return table


def _count_table(counts: Sequence[RankCounts] | Sequence[FilterCount]) -> Table:
    """Return the table with a line for each rank or filter; all cells but the first are numbers."""
    from rich.text import Text

    table = _table({heading: number > 0 for number, heading in enumerate(counts[0].cells())})
    for c in counts:
        table.add_row(*map(Text, c.cells().values()))  # a name of a rank in brackets is not markup
    return table


def _finding_table(findings: Sequence[Finding]) -> Table:
    from rich.text import Text

    table = _table({"": False, "finding": False, "rows": True, "meaning": False})
    for f in findings:
        rows = f"{len(f.rows):,}" if len(f.rows) else ""
        table.add_row(Text(f.severity, style=COLOURS[f.severity]), Text(escaped(f.check)), rows, Text(escaped(f.text)))
    return table
