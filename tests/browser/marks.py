"""Marks of charts and texts have their values under the pointer, a finger and the arrow keys, and a printed page has all rows.
`make test-browser`; ten seconds. The page is made here, without a run.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from linnaeus.reporting.charts import BLUE, Chart, Scale
from linnaeus.reporting.report.downsampling import Curve
from linnaeus.reporting.report.html_parts import Cell, Column, Section, explained, picture_of_marks, table
from linnaeus.reporting.report.line_chart import line_chart
from linnaeus.reporting.report.page import sections_page

TREE = "<details><summary>level {}</summary>{}</details>"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a page with a chart of three dots, a text of tokens, a word, a line chart, a table and a tree of four levels."""
    chart = Chart(Scale(0, 10, 20, 280), Scale(0, 10, 180, 20))
    for x in (8, 2, 5):  # not in the order of the arrow keys
        chart.dot(x, 5, BLUE, "s0", 5, data_about=f"dot {x}")
    tokens = "".join(f'<span class="hard" data-about="{loss} nats">{token}</span>' for token, loss in (("a", 1), ("b", 2)))
    tree = ""
    for level in (4, 3, 2, 1):
        tree = TREE.format(level, tree)
    body = picture_of_marks(chart, 300, 200, "three dots")
    body += f'<blockquote tabindex="0" data-marks aria-label="text">{tokens}</blockquote><p id="else">{explained("word", "meaning")}</p>'
    body += line_chart("Loss", {"loss": Curve.of([(1.0, 2.0), (2.0, 1.0)])})
    body += table("rows", [Column("x")], [[Cell(str(i), i)] for i in range(30)], shown=3)
    body += f'<div class="card tree">{tree}</div>'
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(sections_page("marks", "<header><h1>Marks</h1></header>", [Section("All", body)]))
    return path


def opened(browser: Browser, file: Path, **options) -> Page:
    tab = browser.new_context(offline=True, **options).new_page()
    tab.goto(file.as_uri())
    return tab


def shown(tab: Page) -> str:
    """Return the text of the tooltip; "" if it is hidden."""
    tip = tab.locator(".tip")
    return tip.inner_text() if tip.is_visible() else ""


def test_arrow_keys_move_from_mark_to_mark(browser: Browser, file: Path):
    tab = opened(browser, file)
    picture, text = tab.locator("svg[data-marks]"), tab.locator("blockquote")
    picture.focus()
    found = []
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "Home", "End", "ArrowLeft"):
        tab.keyboard.press(key)
        found.append(shown(tab))
        assert picture.locator(".at").count() == 1
    assert found == ["dot 2", "dot 5", "dot 8", "dot 8", "dot 2", "dot 8", "dot 5"]
    tab.keyboard.press("Escape")
    assert shown(tab) == ""
    text.focus()
    assert picture.locator(".at").count() == 0
    tab.keyboard.press("End")
    assert shown(tab) == "b: 2 nats"
    tab.keyboard.press("Tab")
    assert shown(tab) == "meaning"
    tab.context.close()


def test_a_finger_leaves_the_value_on_the_screen(browser: Browser, file: Path):
    tab = opened(browser, file, viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    marks = {"svg[data-marks] .dot >> nth=0": "dot 8", ".hard >> nth=1": "2 nats", ".why >> nth=0": "meaning", "svg[data-series]": "step"}
    for mark, text in marks.items():
        tab.locator(mark).tap()
        assert text in shown(tab), mark
        tab.locator("h1").tap()
        assert shown(tab) == "", mark
    tab.context.close()


def test_a_pointer_shows_a_value_and_takes_it_away(browser: Browser, file: Path):
    tab = opened(browser, file)
    tab.locator("svg[data-marks] .dot").first.hover()
    assert shown(tab) == "dot 8"
    tab.locator("h1").hover()
    assert shown(tab) == ""
    tab.context.close()


def test_a_printed_page_has_all_rows_and_three_levels_of_the_tree(browser: Browser, file: Path):
    tab = opened(browser, file)
    seen = "query => [...document.querySelectorAll(query)].filter(e => e.checkVisibility()).length"
    assert (tab.evaluate(seen, "tbody tr"), tab.evaluate(seen, "summary")) == (3, 1)
    tab.emulate_media(media="print")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert (tab.evaluate(seen, "tbody tr"), tab.evaluate(seen, "summary")) == (30, 3)
    tab.emulate_media(media="screen")
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert (tab.evaluate(seen, "tbody tr"), tab.evaluate(seen, "summary")) == (3, 1)
    tab.context.close()
