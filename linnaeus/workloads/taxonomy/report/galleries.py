"""Make galleries of validation samples with right, wrong and confidently wrong predictions: photographs, metadata and probabilities."""

from collections.abc import Mapping
from html import escape
from typing import Any

from linnaeus.reporting.report.html_parts import folded
from linnaeus.workloads.taxonomy.report.answer_tables import AnswerTables
from linnaeus.workloads.taxonomy.report.sample_table import Sample, taxon_name
from linnaeus.workloads.taxonomy.report.thumbnails import image_element

YEARS = {365: 2001, 366: 2000}  # days -> a year with so many
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def galleries(tables: AnswerTables) -> str:
    """Return the HTML of the section with validation samples and their predictions: a gallery for each group in photographs.json.

    Return "" without photographs.json."""
    parts: list[str] = []
    for title, numbers in tables.examples.get("groups", {}).items():
        shown = "".join(_figure(tables, tables.samples[number]) for number in numbers if number < len(tables.samples))
        if shown:
            parts.append(folded(title, f'<div class="gallery">{shown}</div>', open_=not parts or "Wrong" in title))
    return "".join(parts)


def _figure(tables: AnswerTables, sample: Sample) -> str:
    entry = tables.photograph(f"validation/{sample.number}")
    label = taxon_name(sample.label)
    picture = image_element(entry["webp"], f"photograph of {label}") if entry.get("webp") else '<div class="none">no photograph</div>'
    word, mark = ("right", "good") if sample.right else ("wrong", "bad")
    best = "".join(_probability(lineage, p, lineage == sample.label) for lineage, p in sample.best)
    lines = [_metadata(entry.get("metadata", {})), escape(str(entry.get("name", sample.name)).rpartition("/")[2])]
    notes = "".join(f'<span class="note">{line}</span>' for line in lines if line)
    return (
        f'<figure>{picture}<figcaption><span class="verdict {mark}">{word}</span> <i>{escape(label)}</i></figcaption>'
        f'<span class="note">{best}</span>{notes}</figure>'
    )


def _probability(lineage: str, probability: float, true: bool) -> str:
    name = f"<b>{escape(taxon_name(lineage))}</b>" if true else escape(taxon_name(lineage))
    return f"{100 * probability:.0f} % {name}<br>"


def _metadata(values: Mapping[str, Any]) -> str:
    """Return known metadata as HTML, such as `47.10° N, 8.50° E, 12 Jun, 14 h, 640 m`; `no place or date` if nothing is known.

    values: latitude and longitude in degrees, day as a fraction of the year, hour, and elevation in metres; each may be missing."""
    parts: list[str] = []
    if "latitude" in values and "longitude" in values:
        latitude, longitude = values["latitude"], values["longitude"]
        parts.append(f"{abs(latitude):.2f}° {'N' if latitude >= 0 else 'S'}, {abs(longitude):.2f}° {'E' if longitude >= 0 else 'W'}")
    if "day" in values:
        parts.append(_date(values["day"]))
    if "hour" in values:
        parts.append(f"{values['hour']:.0f}\u00a0h")
    if "elevation" in values:
        parts.append(f"{values['elevation']:,.0f}\u00a0m")
    return escape(", ".join(parts)) or "no place or date"


def _date(fraction: float) -> str:
    """Return a day of the year as text, such as `12 Jun`. `fraction`: fraction of the year at the start of the day, in [0, 1).

    Fractions of a leap year are multiples of 1/366, those of other years of 1/365. Any other fraction is that of a year of 365 days."""
    import datetime

    whole = [days for days in YEARS if abs(fraction * days - round(fraction * days)) < 1e-3]
    days = whole[0] if whole else 365
    passed = min(round(fraction * days) if whole else int(fraction * days), days - 1)
    day = datetime.date(YEARS[days], 1, 1) + datetime.timedelta(days=passed)
    return f"{day.day} {MONTHS[day.month - 1]}"
