"""Use the page of `linnaeus serve` in Chromium: give it a photograph, a place and a date, and compare what it shows with `load_model`.

`make test-browser`; a minute on two cores. Pictures are in `OUT`. Taxa of the model have HTML, quotes, commas and Hebrew in their names.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page

import linnaeus
from linnaeus.workloads.taxonomy.biota.__main__ import biota_config, export
from linnaeus.workloads.taxonomy.trained.embed import embed_cli
from tests.browser.proof import OUT, OUTSIDE, VIEWS, violations
from tests.workloads.taxonomy.serving.client import running
from tests.workloads.taxonomy.trained.kept_bundle import ZIP

HTML, RIGHT_TO_LEFT = "<b>Incertae, “sp.” & co</b>", "אוצלוט"
FILE, HEBREW_FILE = '<i title="x">a, b.png', f"{RIGHT_TO_LEFT}.png"
SIDE = 320  # pixels of the photographs


class Served(NamedTuple):
    address: str
    photographs: list[Path]
    bundle: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Start a service with an index of eight photographs, a checklist and two regions."""
    OUT.mkdir(parents=True, exist_ok=True)
    folder = tmp_path_factory.mktemp("served")
    with zipfile.ZipFile(ZIP) as file:
        file.extractall(folder)
    export(biota_config(train=8, validation=2, size=SIDE), folder / "organisms")
    photographs = sorted(path for path in (folder / "organisms").rglob("*") if path.suffix in (".jpg", ".png"))
    for photograph, name in zip(photographs, (FILE, HEBREW_FILE), strict=False):
        Image.open(photograph).save(folder / name)
    index = [str(folder / FILE), str(folder / HEBREW_FILE), *map(str, photographs[2:8])]
    embed_cli.main([str(folder / "bundle"), *index, "--without-metadata", "--threads", "1", "--out", str(folder / "features.npy")])
    (folder / "birds.txt").write_text(f"Crax rubra\nOrtalis vetula\n{HTML}\n", encoding="utf-8")
    table = "species,region\nCrax rubra,north\nPanthera onca,north\nTapirus bairdii,<south>\n"
    (folder / "regions.csv").write_text(table, encoding="utf-8")
    options = ["--nearest", folder / "features.npy", "--checklist", f"birds={folder / 'birds.txt'}", "--region", folder / "regions.csv"]
    with running(folder / "bundle", *map(str, options), seconds=600) as service:
        yield Served(f"http://127.0.0.1:{service.port}/", photographs, folder / "bundle")


def opened(browser: Browser, served: Served, view: str, messages: list[str]) -> Page:
    """Open the page. Its console messages, errors and requests of other addresses are added to `messages`."""
    tab = browser.new_context(**VIEWS[view]).new_page()
    tab.on("console", lambda message: messages.append(f"{message.type}: {message.text}"))
    tab.on("pageerror", lambda error: messages.append(f"error: {error}"))
    outside = lambda address: not address.startswith((served.address, "blob:", "data:"))
    tab.on("request", lambda request: messages.append(f"request: {request.url[:80]}") if outside(request.url) else None)
    tab.goto(served.address)
    tab.wait_for_function("() => model !== null")
    return tab


def shown(tab: Page, count: int = 1) -> None:
    """Wait until the page shows `count` answers and waits for no other."""
    tab.wait_for_function(
        "count => document.querySelectorAll('#answers > div').length === count && $('status').className === 'heard'", arg=count
    )
    tab.wait_for_load_state("networkidle")


def rows(tab: Page) -> list[list[str]]:
    """Return the name, the probability and the class of each row of the first tree, unfolded or not."""
    read = "r => [r.querySelector('bdi').textContent, r.querySelector('.share').textContent, r.className]"
    return tab.evaluate(f"[...document.querySelector('.tree').querySelectorAll('.row')].map({read})")


def check_page(tab: Page, width: int) -> None:
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate(OUTSIDE, width) == []
    assert violations(tab) == []


@pytest.mark.parametrize("view", VIEWS)
def test_the_page_fits_says_nothing_and_is_accessible(view: str, served: Served, browser: Browser, messages: list[str]):
    tab = opened(browser, served, view, messages)
    width = VIEWS[view]["viewport"]["width"]
    tab.screenshot(path=OUT / f"service-{view}-start.png", full_page=True)
    check_page(tab, width)
    tab.fill("#latitude", "-33.5")
    tab.fill("#longitude", "151.2")
    tab.fill("#date", "2026-05-01")
    tab.check("#heat")
    tab.check("#both")
    tab.set_input_files("#file", served.photographs[4])  # has an answer with place and date, and none without
    shown(tab, 2)
    assert [tab.locator(f"#answers > div:nth-child({i}) > .headline.uncertain").count() for i in (1, 2)] == [0, 1]
    assert tab.locator("#nearest li").count() == 6 and tab.locator("canvas[role=img]").count() == 2
    tab.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    tab.screenshot(path=OUT / f"service-{view}.png", full_page=True)
    check_page(tab, width)
    assert messages == []
    tab.context.close()


def test_the_answers_are_those_of_load_model(served: Served, browser: Browser, messages: list[str]):
    """Compare taxa, probabilities and answer with those of `predict`: without metadata, with them, and without them again."""
    tab = opened(browser, served, "desktop", messages)
    model, path = linnaeus.load_model(served.bundle), served.photographs[4]
    place = {"latitude": 10.5, "longitude": -70.2, "date": "2026-07-15", "elevation": 300}
    tab.set_input_files("#file", path)
    shown(tab)
    for given in ({}, place, {}):
        for name in place:
            tab.fill(f"#{name}", str(given.get(name, "")))
        tab.click("#ask")
        tab.wait_for_function("title => document.querySelector('#answers h3').textContent === title", arg=title_of(given))
        expected = model.predict(path.read_bytes(), **given)
        found = {name: percent for name, percent, _ in rows(tab)}
        for taxon in (taxon for taxa in expected.ranks.values() for taxon in taxa):
            assert near(found[taxon.name], taxon.probability), (given, taxon)
        assert [name for name, _, kind in rows(tab) if "decided" in kind] == [taxon.name for taxon in expected.path]
        best = expected.answer or expected.path[-1]
        assert tab.inner_text(".headline .taxon") == best.name
        assert ("uncertain" in tab.get_attribute(".headline", "class")) == (expected.answer is None)
        assert [name for name, _, kind in rows(tab) if "answer" in kind] == ([best.name] if expected.answer else [])
        assert (expected.answer is None) == (given == {}), "the photograph shows both kinds of headlines"
    assert messages == []
    tab.context.close()


def title_of(given: dict) -> str:
    return "With elevation, place, date" if given else "Photograph alone"


def near(text: str, probability: float) -> bool:
    """Return True if the page shows `text` for a probability, to its last digit."""
    number = float(text.removesuffix("\u00a0%").removeprefix("<"))
    return abs(number - 100 * probability) <= 0.0501 or text.startswith("<")


def test_names_come_out_as_they_went_in(served: Served, browser: Browser, messages: list[str]):
    tab = opened(browser, served, "desktop", messages)
    tab.set_input_files("#file", served.photographs[2])
    shown(tab)
    names = [name for name, _, _ in rows(tab)]
    assert {HTML, RIGHT_TO_LEFT} <= set(names) and tab.locator(".tree b b, .nearest i").count() == 0
    files = tab.evaluate("[...document.querySelectorAll('#nearest bdi')].map(e => e.textContent)")
    assert {FILE, HEBREW_FILE} <= set(files)
    assert tab.evaluate("[...$('region').options].map(o => o.textContent)") == ["all", "<south>", "north"]
    tab.fill("#clade", HTML)
    tab.press("#clade", "Tab")
    tab.wait_for_function("name => document.querySelector('.headline .taxon').textContent === name", arg=HTML)
    assert tab.evaluate("[...document.querySelectorAll('.tree bdi')].map(e => e.textContent)")[-1] == HTML
    tab.fill("#clade", '<img src=x onerror=alert(1)>, "no" taxon')
    tab.press("#clade", "Tab")
    tab.wait_for_function("() => $('error').textContent !== ''")
    assert '<img src=x onerror=alert(1)>, "no" taxon' in tab.inner_text("#error") and tab.locator("#error *").count() == 0
    tab.screenshot(path=OUT / "service-error.png", full_page=True)
    assert [one for one in messages if "400 (Bad Request)" not in one] == []  # Chromium's own line about the refusal
    tab.context.close()


def test_a_choice_of_taxa_limits_the_answers(served: Served, browser: Browser, messages: list[str]):
    tab = opened(browser, served, "desktop", messages)
    tab.set_input_files("#file", served.photographs[3])
    shown(tab)
    for select, choice, only in (("checklist", "birds", {"Aves"}), ("region", "<south>", {"Mammalia"})):
        tab.select_option(f"#{select}", choice)
        tab.wait_for_function("only => document.querySelectorAll('.tree > ul > li').length === only.length", arg=[*only])
        assert {name for name, _, _ in rows(tab)} & {"Aves", "Mammalia"} == only
        assert "The precision was measured among all taxa" in tab.inner_text(".headline") or "Not calibrated" in tab.inner_text(".headline")
        tab.select_option(f"#{select}", "")
        tab.wait_for_function("() => document.querySelectorAll('.tree > ul > li').length === 2")
    assert messages == []
    tab.context.close()


def test_a_photograph_can_be_dropped(served: Served, browser: Browser, messages: list[str]):
    """Drop it beside the frame: the page stays, and the photograph is taken."""
    tab = opened(browser, served, "desktop", messages)
    content = list(served.photographs[4].read_bytes())
    drop = """bytes => {
      const data = new DataTransfer();
      data.items.add(new File([new Uint8Array(bytes)], "dropped.png", {type: "image/png"}));
      document.querySelector("h1").dispatchEvent(new DragEvent("drop", {bubbles: true, cancelable: true, dataTransfer: data}));
    }"""
    tab.evaluate(drop, content)
    shown(tab)
    assert tab.get_attribute("#preview", "alt") == "dropped.png" and tab.url == served.address and messages == []
    tab.context.close()


def test_all_of_it_is_done_with_the_keyboard(served: Served, browser: Browser, messages: list[str]):
    """Only Tab, arrows, Space, Enter and digits are pressed. The dialog of the system for files cannot be: its result is set."""
    tab = opened(browser, served, "desktop", messages)
    reach(tab, "file")
    tab.set_input_files("#file", served.photographs[5])
    shown(tab)
    reach(tab, "map")
    for key in ("ArrowUp", "Shift+ArrowRight", "ArrowRight"):
        tab.keyboard.press(key)
    assert (tab.input_value("#latitude"), tab.input_value("#longitude")) == ("1.0", "11.0")
    assert "latitude 1.0, longitude 11.0" in tab.inner_text("#status")
    reach(tab, "closer")
    tab.keyboard.press("Enter")
    assert tab.get_attribute("#map", "viewBox").split()[2] == "180"
    reach(tab, "elevation")
    tab.keyboard.type("120")
    for name in ("heat", "both"):
        reach(tab, name)
        tab.keyboard.press("Space")
    reach(tab, "ask")
    tab.keyboard.press("Enter")
    shown(tab, 2)
    assert tab.evaluate("[...document.querySelectorAll('#answers h3')].map(e => e.textContent)") == [
        "With elevation, place",
        "Photograph alone",
    ]
    spoken = tab.inner_text("#status")
    assert spoken.count("probability") == 2 and tab.locator("#status").get_attribute("role") == "status"
    while not tab.evaluate("document.activeElement.matches('.tree summary')"):
        tab.keyboard.press("Tab")
    before = tab.evaluate("document.activeElement.parentElement.open")
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.parentElement.open") != before
    assert messages == []
    tab.context.close()


def reach(tab: Page, name: str, most: int = 60) -> None:
    """Press Tab until the element with the id `name` has the focus, and check that the focus can be seen."""
    for _ in range(most):
        if tab.evaluate("document.activeElement.id") == name:
            break
        tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.id") == name
    outline = "e => [e, e.closest('.drop')].some(one => one && getComputedStyle(one).outlineStyle !== 'none')"
    assert tab.evaluate(f"({outline})(document.activeElement)"), name


@pytest.mark.parametrize("content, words", [(b"not a photograph", "cannot be decoded"), (b"", "the photograph is empty")])
def test_a_file_that_is_no_photograph_is_one_line(content, words, served: Served, browser: Browser, messages: list[str], tmp_path: Path):
    tab = opened(browser, served, "phone", messages)
    (tmp_path / "text.png").write_bytes(content)
    tab.set_input_files("#file", tmp_path / "text.png")
    tab.wait_for_function("() => $('error').textContent !== ''")
    assert words in tab.inner_text("#error") and tab.locator("#answers > div").count() == 0 and violations(tab) == []
    tab.context.close()


def test_the_checks_find_mistakes(served: Served, browser: Browser, messages: list[str]):
    """A negative control: another probability, a name that becomes HTML, and a script that fails."""
    tab = opened(browser, served, "desktop", messages)

    answer = json.dumps(linnaeus.load_model(served.bundle).predict(served.photographs[0]).plain())
    other = answer.replace(json.dumps(RIGHT_TO_LEFT), '"Falsified"')
    tab.route("**/predict", lambda route: route.fulfill(status=200, content_type="application/json", body=other))
    tab.set_input_files("#file", served.photographs[0])
    shown(tab)
    assert RIGHT_TO_LEFT not in [name for name, _, _ in rows(tab)]
    tab.evaluate("setTimeout(() => undefined_function(), 0)")
    tab.evaluate("document.querySelector('.tree b').innerHTML = '<b>name</b>'")
    tab.wait_for_timeout(50)
    assert tab.locator(".tree b b").count() == 1 and any(one.startswith("error") for one in messages)
    tab.context.close()
