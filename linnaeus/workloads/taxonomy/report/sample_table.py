"""Read the table of predictions for validation samples, which `metrics/sample_answers.py` writes as CSV."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Row = Mapping[str, str]


class Sample(NamedTuple):
    """Prediction for a validation sample. `number`: index in the validation dataset. `label`, `predicted`: lineages, "" for none.
    `confidence`: probability of `predicted`. `best`: (lineage, probability) of at most three most probable classes of the finest rank, in
    descending order. `metadata`: names of the known metadata components. `height`: ranks from the prediction up to the lowest common taxon
    with the label."""

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
    """Return a `Sample` for each row of the table. `finest`: name of the finest rank."""
    return [_sample(number, row, finest) for number, row in enumerate(rows)]


def _sample(number: int, row: Row, finest: str) -> Sample:
    best = [(row[f"answer_{k}"], float(row[f"probability_{k}"])) for k in (1, 2, 3) if row.get(f"answer_{k}")]
    right = {"1": True, "0": False}.get(row[f"{finest}/top1"])
    height = int(row["hd1"]) if row["hd1"] else None
    texts = (row["sample"], row["label"], row["predicted"])
    return Sample(number, *texts, float(row["confidence"] or 0), tuple(best), tuple(row["metadata"].split()), right, height)


def taxon_name(lineage: str) -> str:
    """Return the last part of a lineage, such as `Rosa canina`; "no answer" for ""."""
    last = re.split(r"(?<!\\)(?:\\\\)*\|", lineage)[-1] if "\\" in lineage else lineage.rpartition("|")[2]
    return re.sub(r"\\(.)", r"\1", last) or "no answer"
