"""Read the table of answers to validation samples (`metrics/sample_answers.py`) from its CSV file."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Row = Mapping[str, str]


class Sample(NamedTuple):
    """Answer to a validation sample. `label`, `predicted`: lineages, "" for none. `best`: (lineage, probability) of the most probable
    finest classes, the most probable first. `number`: index in the validation dataset."""

    number: int
    name: str
    label: str
    predicted: str
    confidence: float
    best: tuple[tuple[str, float], ...]
    metadata: tuple[str, ...]
    right: bool | None  # at the finest rank; None without a label there
    height: int | None


def read_samples(rows: Sequence[Row], finest: str) -> list[Sample]:
    """Return the samples of a table's rows. `finest`: name of the finest rank."""
    return [_sample(number, row, finest) for number, row in enumerate(rows)]


def _sample(number: int, row: Row, finest: str) -> Sample:
    best = [(row[f"answer_{k}"], float(row[f"probability_{k}"])) for k in (1, 2, 3) if row.get(f"answer_{k}")]
    right = {"1": True, "0": False}.get(row[f"{finest}/top1"])
    height = int(row["hd1"]) if row["hd1"] else None
    texts = (row["sample"], row["label"], row["predicted"])
    return Sample(number, *texts, float(row["confidence"] or 0), tuple(best), tuple(row["metadata"].split()), right, height)


def taxon_name(lineage: str) -> str:
    """Return the last name of a lineage id, such as `Rosa canina`; "no answer" for none."""
    last = re.split(r"(?<!\\)(?:\\\\)*\|", lineage)[-1] if "\\" in lineage else lineage.rpartition("|")[2]
    return re.sub(r"\\(.)", r"\1", last) or "no answer"
