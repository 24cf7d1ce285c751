"""Write the same records of biota for all formats: photographs in folders of species, rows with their metadata, and their manifest.

The test of a format writes the records in this format, and calls `same_as_manifest` and `trains`.
"""

import csv
import io
import multiprocessing
import os
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from linnaeus.workloads.taxonomy.biota.__main__ import biota_config, export
from linnaeus.workloads.taxonomy.manifest import build_source
from linnaeus.workloads.taxonomy.observations.left_out import LeftOut
from tests import runs

METADATA = ("latitude", "longitude", "uncertainty", "date", "time", "elevation")
SMALL = ["data.image_size=16", "data.validation_batch=8", "data.components=[SPATIAL,TEMPORAL,ELEVATION]", "augment=none"]


@dataclass(frozen=True)
class Records:
    """Photographs `folder`/SPECIES/ID.jpg and the rows of their table, `folder`/manifest.csv, sorted by path.

    The columns are path (SPECIES/ID.jpg), order, family, genus, species, METADATA and split. Unknown cells are empty. Every row has a
    species."""

    folder: Path
    rows: list[dict[str, str]]

    def bytes(self, row: dict[str, str]) -> bytes:
        return (self.folder / row["path"]).read_bytes()

    def write(self, path: Path, columns: tuple[str, ...] | None = None) -> Path:
        """Write the rows, or some of their columns, as CSV."""
        names = columns or tuple(self.rows[0])
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, names, extrasaction="ignore")
            table.writeheader()
            table.writerows(self.rows)
        return path


def photograph(i: int) -> bytes:
    """Return a PNG of one colour, which depends on `i`."""
    file = io.BytesIO()
    Image.new("RGB", (20, 20), (i % 256, 40, 90)).save(file, "PNG")
    return file.getvalue()


def read_in_process(files: Any, row: int, start: str = "fork") -> bytes:
    """Return `files.read(row)` of another process, started by fork or spawn."""
    context = multiprocessing.get_context(start)
    queue = context.Queue()
    process = context.Process(target=_read, args=(files, row, queue))
    process.start()
    found = queue.get(timeout=600)
    process.join()
    return found


def _read(files: Any, row: int, queue: Any) -> None:
    queue.put(files.read(row))


@pytest.fixture(scope="session")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    folder = tmp_path_factory.mktemp("records")
    export(biota_config(train=60, validation=20, size=24), folder / "export")
    with (folder / "export/manifest.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["species"]]
    for row in rows:
        old, row["path"] = row["path"], f"{row['species']}/{Path(row['path']).name}"
        (folder / row["path"]).parent.mkdir(exist_ok=True)
        os.rename(folder / "export" / old, folder / row["path"])
    found = Records(folder, sorted(rows, key=lambda row: row["path"]))
    found.write(folder / "manifest.csv")
    return found


def source_of(*overrides: str) -> Any:
    """Return the source of `data=NAME data.path=...`, composed as on the command line, for small pictures.

    Check that left_out.csv has as many records for each reason as `source.excluded`."""
    source = build_source(runs.composed([*overrides, *SMALL]).data)
    counts = Counter[str]()
    for _, reason, number in left_out(source.excluded):
        counts[reason] += int(number)
    assert counts == source.excluded
    return source


def left_out(excluded: LeftOut) -> list[list[str]]:
    """Return the lines of left_out.csv: record, reason, number."""
    with tempfile.TemporaryDirectory() as folder:
        excluded.write(Path(folder) / "left_out.csv")
        return list(csv.reader((Path(folder) / "left_out.csv").read_text().splitlines()))[1:]


def same_as_manifest(records: Records, *overrides: str, columns: tuple[str, ...] | None = None) -> Any:
    """Check that the source of `overrides` has the fingerprint, names, labels, metadata, split and pixels of the manifest with `columns`
    (default: all). Return it."""
    keys = [text for text in overrides if not text.startswith(("data=", "data.path=", "data.root="))]
    path = records.folder / "manifest.csv" if columns is None else records.write(records.folder / "part.csv", columns)
    theirs, ours = source_of("data=manifest", f"data.path={path}", *_common(keys)), source_of(*overrides)
    assert ours.ids.tolist() == theirs.ids.tolist()
    assert ours.tree.ranks == theirs.tree.ranks
    assert [list(names) for names in ours.tree.names] == [list(names) for names in theirs.tree.names]
    np.testing.assert_array_equal(ours.labels, theirs.labels)
    np.testing.assert_array_equal(ours.split, theirs.split)
    for name, values in vars(theirs.metadata).items():
        np.testing.assert_array_equal(getattr(ours.metadata, name), values, err_msg=name)
    some = np.arange(0, len(ours.ids), 7)
    for a, b in zip(ours.images.read(some), theirs.images.read(some), strict=True):
        np.testing.assert_array_equal(a, b)
    assert ours.fingerprint == theirs.fingerprint
    return ours


def _common(keys: list[str]) -> list[str]:
    """Return those of the overrides that `data=manifest` accepts."""
    known = runs.composed(["data=manifest", "data.path=x"]).data
    return [text for text in keys if hasattr(known, text.partition("=")[0].removeprefix("data."))]


def trains(root: Path, *overrides: str) -> dict[str, Any]:
    """Train for an epoch on a CPU, as `python main.py` does. Return summary.json."""
    small = [text for text in runs.TINY if not text.startswith("data.")]
    small += ["schedule.validate_mask_meta=[]", "schedule.validate_partial_mask_meta=[]", "model.size=micro", "trainer.length=1epochs"]
    config = runs.composed([*overrides, *SMALL, *small, f"run.root={root}", "run.name=run"])
    return runs.summary(runs.resumed(config))
