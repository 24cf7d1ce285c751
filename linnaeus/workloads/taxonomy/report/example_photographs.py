"""Choose photographs for report.html at the end of a run, and save small copies of them: validation/step-N/photographs.json.

The file contains

    groups       title -> numbers of validation samples: random right ones, random wrong ones, and the most confident wrong ones
    pairs        the most frequent confusions: lineages of label and prediction, numbers of two validation samples
    photographs  key -> name, metadata and the photograph as WebP in base64; keys are `validation/<number>` and `training/<lineage>`
    ceilings     metric -> best possible accuracy, for generated data only
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from linnaeus.files import to_json, write_atomic
from linnaeus.randomness import BOOTSTRAP, hashes, key
from linnaeus.reporting.report.run_files import read_table
from linnaeus.workloads.taxonomy.observations import Source, UndecodableImage
from linnaeus.workloads.taxonomy.report.sample_table import Sample, read_samples
from linnaeus.workloads.taxonomy.report.thumbnails import thumbnail

FILE = "photographs.json"
PER_GROUP, PAIRS = 12, 9  # most samples of a group, most confusions
GROUPS = ("Right predictions, drawn at random", "Wrong predictions, drawn at random", "Wrong predictions with the highest confidence")


def save_examples(folder: Path, source: Source, training: np.ndarray, validation: np.ndarray, ceilings: Mapping[str, float]) -> None:
    """Write photographs.json to `folder`, the directory of the last validation. Write nothing without the table of samples.

    training, validation: row numbers in `source` of the training and validation observations, int64 arrays in the order of the datasets.
    ceilings: metric -> best possible accuracy; {} if unknown."""
    finest = source.tree.ranks[-1]
    samples = read_samples(read_table(folder / "val-samples.csv"), finest)
    if not samples:
        return
    groups = _groups(samples)
    pairs = [_pair(row, samples) for row in read_table(folder / "val-confusions.csv")[:PAIRS]]
    chosen = {number for numbers in groups.values() for number in numbers} | {n for pair in pairs for n in pair["samples"]}
    rows = {f"validation/{number}": int(validation[number]) for number in sorted(chosen)}
    rows |= _reference_rows(source, training, {lineage for pair in pairs for lineage in (pair["label"], pair["predicted"])})
    photographs = {name: _photograph(source, row) for name, row in rows.items()}
    content = {"groups": groups, "pairs": pairs, "ceilings": dict(ceilings), "photographs": photographs}
    write_atomic(folder / FILE, to_json(content, None))


def _groups(samples: Sequence[Sample]) -> dict[str, list[int]]:
    """Return {title of a gallery: indices of at most `PER_GROUP` samples}, for the titles in `GROUPS`.

    Samples without a label at the finest rank are left out. The random order depends only on the number of samples, so that the pages of
    different runs show mostly the same photographs."""
    order = hashes(key(0, BOOTSTRAP, len(samples)), np.arange(len(samples), dtype=np.uint64))
    shuffled = sorted((s for s in samples if s.right is not None), key=lambda s: int(order[s.number]))
    wrong = [s for s in shuffled if not s.right]
    chosen = ([s for s in shuffled if s.right], wrong, sorted(wrong, key=lambda s: -s.confidence))
    return {title: [s.number for s in own[:PER_GROUP]] for title, own in zip(GROUPS, chosen, strict=True)}


def _pair(row: Mapping[str, str], samples: Sequence[Sample]) -> dict[str, Any]:
    """Return an entry of `pairs` in photographs.json: `label` and `predicted` (lineages), and `samples`, indices of at most two samples.

    These are the samples of the confusion with the highest confidence. row: row of the table of confusions. samples: all validation
    samples."""
    own = [s for s in samples if s.label == row["label"] and s.predicted == row["predicted"]]
    numbers = [s.number for s in sorted(own, key=lambda s: -s.confidence)[:2]]
    return {"label": row["label"], "predicted": row["predicted"], "samples": numbers}


def _reference_rows(source: Source, training: np.ndarray, lineages: Iterable[str]) -> dict[str, int]:
    """Return {`training/<lineage>`: row number in `source` of the first training observation with this label}.

    training: row numbers in `source` of the training observations. lineages: taxa of the finest rank; a taxon without a training
    observation is left out."""
    index = {lineage: c for c, lineage in enumerate(source.tree.lineage_ids(len(source.tree.ranks) - 1))}
    labels, found = source.labels[training, -1], {}
    for lineage in sorted(lineages):
        rows = np.flatnonzero(labels == index[lineage])
        if len(rows):
            found[f"training/{lineage}"] = int(training[rows[0]])
    return found


def _photograph(source: Source, row: int) -> dict[str, Any]:
    """Return an entry of `photographs` in photographs.json: `name`, `metadata` (known values only) and `webp`, the result of `thumbnail`.

    row: row number of the observation in `source`. `webp` is None if the photograph cannot be read."""
    values = source.metadata.take(np.array([row]))
    place = {name: float(f"{float(value[0]):.6g}") for name, value in vars(values).items() if not np.isnan(value[0])}
    try:
        image = thumbnail(source.images.read(np.array([row]))[0])
    except (UndecodableImage, OSError):
        image = None
    return {"name": str(source.ids[row]), "metadata": place, "webp": image}
