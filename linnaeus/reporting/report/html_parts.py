"""Make the HTML parts of report.html and the other pages: sections, machine-readable numbers, words with a tooltip, and sortable tables."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from linnaeus.reporting.charts import Chart, element
from linnaeus.reporting.report.metric_names import meaning, metric_name, show_value

log = logging.getLogger("linnaeus")

DAMAGED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # raised while reading a file with unexpected content


@dataclass(frozen=True)
class Section:
    """Section of a page.

    title: text; it is escaped. body: HTML. about: introductory text; it is escaped. lead: True for the summary at the top of the page,
    whose title is visible in the navigation only."""

    title: str
    body: str
    about: str = ""
    lead: bool = False

    def html(self, number: int) -> str:
        """Return the HTML of the section. number: index of the section on the page; the section has the `id` `s<number>`, for links."""
        about = f'<p class="about">{escape(self.about)}</p>' if self.about else ""
        hidden = ' class="hidden"' if self.lead else ""  # its first sentence is the visible heading
        return f'<section id="s{number}"><h2{hidden}>{escape(self.title)}</h2>{about}{self.body}</section>'

    @classmethod
    def of(cls, title: str, body: Callable[[], str], about: str = "", lead: bool = False) -> "Section":
        """Return a section whose HTML is the result of `body()`. about, lead: as in `Section`.

        If `body` raises one of `DAMAGED`, log a warning and return a section with the text of the warning. Thus a damaged file does not
        stop the report, and a run does not fail at its end."""
        try:
            return cls(title, body(), about, lead)
        except DAMAGED as error:
            return cls(title, empty(left_out(title, error)))


def left_out(title: str, error: Exception) -> str:
    """Log a warning that the section `title` is left out because of `error`, and return the text of the warning."""
    text = f"{title}: left out of the report, because a file of the run is damaged ({type(error).__name__}: {error})"
    log.warning(text, exc_info=log.isEnabledFor(logging.DEBUG))
    return text


def explained(text: str, about: str) -> str:
    """Return `text` as HTML with the tooltip `about`, which is shown under the pointer and on keyboard focus. If `about` is "", there is no
    tooltip. `text` and `about` are escaped."""
    if not about:
        return escape(text)
    return f'<span class="why" tabindex="0" data-about="{escape(about)}">{escape(text)}</span>'


def picture_of_marks(chart: Chart, width: float, height: float, label: str) -> str:
    """Return a chart as an SVG picture with one tab stop. Under the pointer and with the arrow keys, report.js shows the attribute
    `data-about` of each mark, from left to right. label: description for screen readers."""
    size = {"viewBox": f"0 0 {width:g} {height:g}", "role": "img", "tabindex": "0", "aria-label": label}
    return element("svg", "".join(chart.parts), **size, **{"data-marks": ""})


def metric_label(metric: str) -> str:
    """Return the readable name of a metric as HTML, with its meaning as a tooltip. `metric`: key without pass and task."""
    return explained(metric_name(metric), meaning(metric))


def number(key: str, value: float | None) -> str:
    """Return `value` of the metric `key` as HTML, formatted as by `show_value`; an en dash for None.

    For scripts, the element has the attributes `data-key` (`key`) and `data-value` (the exact value; "" for None)."""
    exact = "" if value is None else f"{value!r}"
    return f'<span class="n" data-key="{escape(key)}" data-value="{exact}">{show_value(key, value)}</span>'


def interval(key: str, low: float | None, high: float | None) -> str:
    """Return the 95 % interval `low` to `high` of the metric `key` as HTML; "" if an end is None."""
    if low is None or high is None:
        return ""
    ends = f"{number(f'{key}_low', low)} – {number(f'{key}_high', high)}"
    return f'<span class="interval" title="95 % interval">{ends}</span>'


class Column(NamedTuple):
    """Column of a table. `title`: text of the heading. `about`: tooltip of the heading; "" without one. `words`: True for left-aligned text
    that may wrap, False for right-aligned numbers."""

    title: str
    about: str = ""
    words: bool = False


class Cell(NamedTuple):
    """Cell of a table. `html`: content, not escaped. `value`: value by which rows are sorted; cells with None come last."""

    html: str
    value: float | str | None = None


def share_cell(value: float | None, digits: int = 1) -> Cell:
    """Return the cell of a fraction from 0 to 1, shown in per cent with `digits` decimal places; an en dash for None."""
    return Cell("–", None) if value is None else Cell(f"{100 * value:.{digits}f} %", value)


def count_cell(value: float | None) -> Cell:
    """Return the cell of a count, with commas between thousands; an en dash for None."""
    return Cell("–", None) if value is None else Cell(f"{value:,}", value)


def text_cell(text: str) -> Cell:
    """Return a cell that shows `text`, escaped, and is sorted by it."""
    return Cell(escape(text), text)


def table(title: str, columns: Sequence[Column], rows: Iterable[Sequence[Cell]], shown: int | None = None, sortable: bool = True) -> str:
    """Return an HTML table; "" without rows.

    title: caption. rows: a row has one cell per column. shown: number of rows that are visible at first, with a button for the others;
    None: all. sortable: True if a click on a heading sorts the rows. A wide table has a horizontal scroll bar, and its scroll area takes
    the keyboard focus, so that arrow keys scroll it."""
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
    """Return a `details` element, which opens on a click, with the heading `title` and the HTML `body`; "" if `body` is empty.

    `title` is escaped. open_: True if the body is visible at first."""
    return f"<details{' open' if open_ else ''}><summary>{escape(title)}</summary>{body}</details>" if body else ""


def preformatted(text: str, label: str) -> str:
    """Return `text` as a scrollable `pre` element; "" for an empty text. label: name for screen readers. `text` and `label` are escaped."""
    return f'<pre tabindex="0" role="region" aria-label="{escape(label)}">{escape(text)}</pre>' if text else ""


def cards(items: Iterable[tuple[str, str, str]]) -> str:
    """Return boxes side by side, each with a value in large type, as HTML; "" without `items`. Each item is (value, name, note), all
    HTML."""
    boxes = "".join(f"<div><b>{value}</b><span>{name}</span><small>{note}</small></div>" for value, name, note in items)
    return f'<div class="hero">{boxes}</div>' if boxes else ""


def empty(text: str) -> str:
    """Return `text`, a sentence shown when a section or table has no content, as an HTML paragraph. `text` is escaped."""
    return f'<p class="empty">{escape(text)}</p>'
