"""Display the progress of the preparation of data, before the first update or in a command: a bar on a terminal, otherwise a line once a
minute, in the log of a run or on stderr.

Nothing is shown if the preparation takes less than `REDRAW` seconds (bar) or `FIRST_LINE` seconds (lines). As in `display.py`, no thread is
used, and rich is imported when something is drawn.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from linnaeus.reporting.formatting import format_duration
from linnaeus.reporting.terminal.console import draws_panel
from linnaeus.reporting.terminal.live import REDRAW, start_live

log = logging.getLogger("linnaeus")

T = TypeVar("T")

FIRST_LINE, NEXT_LINE = 5.0, 60.0  # seconds before the first log line, and between two log lines


class PreparationProgress:
    """Display of the progress of an activity, such as "reading the text", while a `with` block runs.

    activity: name of the activity. total: amount of work, in any unit. amount: `total` in words, such as "340 MB". done: amount of work
    done so far, in the unit of `total`; at first that of earlier starts, from which no speed is computed."""

    def __init__(self, activity: str, total: int, amount: str, done: int = 0) -> None:
        self.activity, self.total, self.amount, self.done, self._before = activity, total, amount, done, done
        self._draws = draws_panel()
        self._live: Any = None
        self._start = time.monotonic()
        self._due = self._start + (REDRAW if self._draws else FIRST_LINE)
        self._left = 0.0

    def __enter__(self) -> PreparationProgress:
        return self

    def __exit__(self, *_: object) -> None:
        live, self._live = self._live, None
        if live is not None:
            with contextlib.suppress(OSError):
                live.stop()

    def add(self, number: int) -> None:
        """Add `number` to the amount done. If the time for it has come, redraw the bar, or log a line if there is no terminal."""
        self.done += number
        now = time.monotonic()
        if now < self._due or not self._before < self.done < self.total:
            return
        self._left = (now - self._start) * (self.total - self.done) / (self.done - self._before)
        if self._draws:
            self._due = now + REDRAW
            self._draw()
        else:
            self._due = now + NEXT_LINE
            share = 100 * self.done / self.total
            line = f"{self.activity}: {share:.0f} % of {self.amount}, about {format_duration(self._left)} left"
            if log.hasHandlers():
                log.info("%s", line)
            else:  # a command, which has no log
                print(line, file=sys.stderr, flush=True)

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items. An item counts as 1 of `total` when the caller requests the next item."""
        for item in items:
            yield item
            self.add(1)

    def _draw(self) -> None:
        try:
            if self._live is None:
                self._live = start_live(self._render)
            self._live.refresh()
        except OSError:  # the terminal is gone
            self._live, self._due = None, math.inf

    def _render(self, width: int) -> Any:
        from linnaeus.reporting.terminal.panel import preparation_row

        return preparation_row(self.done / self.total, f"{self.activity}, {format_duration(self._left)} left", width)
