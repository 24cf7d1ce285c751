"""`Reporter`: a `ReportData` through the chosen sections, to lines for a person and a row for the file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from linnaeus.reporting.formatting import layout
from linnaeus.reporting.report_data import ReportData
from linnaeus.reporting.report_sections import SECTIONS


class Reporter:
    """`seconds` is the time spent inside `timed()`: put around it whatever a report costs. `count`: reports made."""

    def __init__(self, sections: Sequence[str], show: Callable[[str], None], write: Callable[[int, Mapping[str, Any]], None]) -> None:
        """`sections` are names of `SECTIONS`. `show(lines)` puts them before a person; `write(step, row)` keeps a row."""
        self._sections = [SECTIONS[name] for name in sections]
        self._show, self._write = show, write
        self.seconds, self.count = 0.0, 0

    @contextmanager
    def timed(self) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - begun

    def report(self, standing: ReportData, keep: bool) -> None:
        """Show it; `keep` the row where the report is due by steps: by the clock it would be another one each time."""
        parts = [section(standing) for section in self._sections]
        self.count += 1
        self._show(layout([part.text for part in section if part.text] for section in parts))
        if keep:
            self._write(standing.step, {part.name: part.value for section in parts for part in section if part.name})
