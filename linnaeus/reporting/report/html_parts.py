"""HTML building blocks of report.html: sections, numbers that a program can check, words with an explanation, and sortable tables."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from linnaeus.reporting.report.metric_words import meaning, metric_name, show_value

log = logging.getLogger("linnaeus")

DAMAGED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # what a file with other content than it should have raises


@dataclass(frozen=True)
class Section:
    """Section of a page. `body`: HTML. `about`: a sentence that says how to read it. `lead`: shown before the curves."""

    title: str
    body: str
    about: str = ""
    lead: bool = False

    def html(self, number: int) -> str:
        about = f'<p class="about">{escape(self.about)}</p>' if self.about else ""
        hidden = ' class="hidden"' if self.lead else ""  # its first sentence is the heading that people see
        return f'<section id="s{number}"><h2{hidden}>{escape(self.title)}</h2>{about}{self.body}</section>'

    @classmethod
    def of(cls, title: str, body: Callable[[], str], about: str = "", lead: bool = False) -> "Section":
        """Return a section with the result of `body`. If that raises an error because a file of the run is damaged, the section and the log
        say so: the end of a run must not fail because its report cannot be complete."""
        try:
            return cls(title, body(), about, lead)
        except DAMAGED as error:
            return cls(title, empty(left_out(title, error)))


def left_out(title: str, error: Exception) -> str:
    """Log and return a line about a section that cannot be made."""
    text = f"{title}: left out of the report, because a file of the run is damaged ({type(error).__name__}: {error})"
    log.warning(text, exc_info=log.isEnabledFor(logging.DEBUG))
    return text


def explained(text: str, about: str) -> str:
    """Return `text` as HTML that shows `about` under the pointer and when it has the keyboard focus."""
    if not about:
        return escape(text)
    return f'<span class="why" tabindex="0" data-about="{escape(about)}">{escape(text)}</span>'


def metric_label(metric: str) -> str:
    """Return the name of a metric with its meaning."""
    return explained(metric_name(metric), meaning(metric))


def number(key: str, value: float | None) -> str:
    """Return the value of a metric as HTML. The attributes have its key in summary.json and the exact value."""
    exact = "" if value is None else f"{value!r}"
    return f'<span class="n" data-key="{escape(key)}" data-value="{exact}">{show_value(key, value)}</span>'


def interval(key: str, low: float | None, high: float | None) -> str:
    """Return the 95 % interval of a metric as HTML; "" if it has none."""
    if low is None or high is None:
        return ""
    ends = f"{number(f'{key}_low', low)} – {number(f'{key}_high', high)}"
    return f'<span class="interval" title="95 % interval">{ends}</span>'


class Column(NamedTuple):
    """Column of a table. `about`: meaning, shown under the pointer. `words`: left-aligned text that may wrap."""

    title: str
    about: str = ""
    words: bool = False


class Cell(NamedTuple):
    """Cell of a table: HTML, and the value by which its column is sorted."""

    html: str
    value: float | str | None = None


def share_cell(value: float | None, digits: int = 1) -> Cell:
    """Return the cell of a fraction, in per cent."""
    return Cell("–", None) if value is None else Cell(f"{100 * value:.{digits}f} %", value)


def count_cell(value: float | None) -> Cell:
    return Cell("–", None) if value is None else Cell(f"{value:,}", value)


def text_cell(text: str) -> Cell:
    return Cell(escape(text), text)


def table(title: str, columns: Sequence[Column], rows: Iterable[Sequence[Cell]], shown: int | None = None, sortable: bool = True) -> str:
    """Return an HTML table; "" without rows. `shown`: number of rows that are shown at first; a button shows the others.

    A wide table scrolls inside its frame, which has the keyboard focus for this."""
    bodies = [_row(columns, row, shown is not None and i >= shown) for i, row in enumerate(rows)]
    if not bodies:
        return ""
    head = "".join(f'<th scope="col"{_class(column)}>{explained(column.title, column.about)}</th>' for column in columns)
    mark = ' class="sortable"' if sortable and len(bodies) > 1 else ""
    more = f'<button type="button" class="more">Show all {len(bodies):,} rows</button>' if shown is not None and len(bodies) > shown else ""
    return (
        f'<div class="card" role="region" tabindex="0" aria-label="{escape(title)}"><table{mark}><caption>{escape(title)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(bodies)}</tbody></table></div>{more}"
    )


def _row(columns: Sequence[Column], cells: Sequence[Cell], hidden: bool) -> str:
    html = "".join(_cell(column, cell, i == 0) for i, (column, cell) in enumerate(zip(columns, cells, strict=True)))
    mark = ' class="rest"' if hidden else ""
    return f"<tr{mark}>{html}</tr>"


def _cell(column: Column, cell: Cell, first: bool) -> str:
    value = f' data-v="{escape(str(cell.value))}"' if cell.value is not None else ""
    tag = 'th scope="row"' if first else "td"
    return f"<{tag}{_class(column)}{value}>{cell.html}</{tag.split()[0]}>"


def _class(column: Column) -> str:
    return ' class="words"' if column.words else ""


def folded(title: str, body: str, open_: bool = False) -> str:
    """Return HTML that a click or the Enter key opens. `body`: HTML."""
    return f"<details{' open' if open_ else ''}><summary>{escape(title)}</summary>{body}</details>" if body else ""


def preformatted(text: str, label: str) -> str:
    """Return text in a frame that scrolls."""
    return f'<pre tabindex="0" role="region" aria-label="{escape(label)}">{escape(text)}</pre>' if text else ""


def cards(items: Iterable[tuple[str, str, str]]) -> str:
    """Return large figures side by side: (HTML of the figure, HTML of its name, HTML of a note)."""
    boxes = "".join(f"<div><b>{value}</b><span>{name}</span><small>{note}</small></div>" for value, name, note in items)
    return f'<div class="hero">{boxes}</div>' if boxes else ""


def empty(text: str) -> str:
    return f'<p class="empty">{escape(text)}</p>'
