"""Read the CSV table of samples, written by `metrics/sample_answers.py`: the prediction for each validation sample."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Row = Mapping[str, str]


class Sample(NamedTuple):
    """Label and prediction of a validation sample.

    number: index of the sample in the validation dataset. name: name of the sample, such as the path of the photograph.
    label, predicted: lineage of the finest known label, and of the finest predicted class; "" for none.
    confidence: probability of `predicted`.
    best: (lineage, probability) of the three most probable classes of the finest rank, in descending order; fewer if there are fewer
      classes.
    metadata: names of the metadata components that the sample has.
    right: True if the prediction at the finest rank is right; None without a label at the finest rank.
    height: number of ranks from the prediction up to the lowest taxon that contains label and prediction; None without a label at the
      finest rank."""

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
    """Return a `Sample` for each row of the table of samples. finest: name of the finest rank; `right` is read from the column
    `<finest>/top1`."""
    return [_sample(number, row, finest) for number, row in enumerate(rows)]


def _sample(number: int, row: Row, finest: str) -> Sample:
    best = [(row[f"answer_{k}"], float(row[f"probability_{k}"])) for k in (1, 2, 3) if row.get(f"answer_{k}")]
    right = {"1": True, "0": False}.get(row[f"{finest}/top1"])
    height = int(row["hd1"]) if row["hd1"] else None
    texts = (row["sample"], row["label"], row["predicted"])
    return Sample(number, *texts, float(row["confidence"] or 0), tuple(best), tuple(row["metadata"].split()), right, height)


def taxon_name(lineage: str) -> str:
    """Return the last name in a lineage (names are separated by `|`), such as `Rosa canina`, without escape characters; "no answer" for
    ""."""
    last = re.split(r"(?<!\\)(?:\\\\)*\|", lineage)[-1] if "\\" in lineage else lineage.rpartition("|")[2]
    return re.sub(r"\\(.)", r"\1", last) or "no answer"
