"""Make the HTML documents report.html, comparison.html and doctor.html. The style sheet and the script are in the file, so that a page
makes no network requests.
"""

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from pathlib import Path

from linnaeus.reporting.report.html_parts import Section

# With this policy the browser blocks all requests, and all scripts other than report.js, even if a file of the run or the HTML of a section
# contains one.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; base-uri 'none'; form-action 'none'; script-src"
_COLOURS = "".join(
    f".s{i}{{stroke:var(--s{i})}}.dot.s{i},.b{i},.bar.s{i}{{fill:var(--s{i});background:var(--s{i})}}text.s{i}{{fill:var(--s{i});stroke:none}}"
    for i in range(8)
)


def page(title: str, body: str) -> str:
    """Return a complete HTML document with the style sheet, `body` and the script report.js. title: text, which is escaped. body: HTML,
    which is not escaped."""
    style, script = ((Path(__file__).parent / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    policy = f"{_POLICY} 'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><title>{escape(title)}</title>'
        f"<style>{style}{_COLOURS}</style></head><body>\n{body}\n<script>{script}</script></body></html>\n"
    )


def sections_page(title: str, header: str, sections: Sequence[Section]) -> str:
    """Return an HTML document of `sections`, with links to them at the top. header: HTML above the first section."""
    links = "".join(f'<li><a href="#s{i}">{escape(section.title)}</a></li>' for i, section in enumerate(sections))
    theme = '<button type="button" class="theme" aria-label="light or dark colours">◐</button>'
    nav = f'<nav aria-label="Sections"><div><ol>{links}</ol>{theme}</div></nav>'
    return page(title, f"{nav}<main>\n{header}\n{''.join(section.html(i) for i, section in enumerate(sections))}\n</main>")
