"""Mutated small sources of every format, for `fuzz.py`. Each is a function of a seed and the number of the case.

The records are written by the writers of the tests of the formats. Mutations (`damage.py`) change cells and rows before, and files after
they are written; then some are packed into a zip or a tar file, which are mutated as well.
"""

import importlib
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from PIL import Image

from linnaeus.workloads.taxonomy.manifest import source_options
from linnaeus.workloads.taxonomy.manifest.records import READERS
from linnaeus.workloads.taxonomy.store import prepare_store
from tests import runs
from tests.faults.damage import cells, damage_file, pack
from tests.workloads.taxonomy.sources import test_camtrap_dp, test_darwin_core, test_labels_h5, test_webdataset
from tests.workloads.taxonomy.sources import test_hugging_face as hugging_face
from tests.workloads.taxonomy.sources import test_inat_competition as inat_competition
from tests.workloads.taxonomy.sources import test_inat_open_data as inat_open_data
from tests.workloads.taxonomy.sources.conftest import METADATA, Records
from tests.workloads.taxonomy.sources.darwin_core_writer import archive
from tests.workloads.taxonomy.sources.darwin_core_writer import write as write_members

ROWS = 14
LABELS = ("order", "family", "genus", "species")
KEYS = ("data.image_size=16", "data.max_bad_fraction=0.9")


@dataclass(frozen=True)
class Format:
    """`write(records, folder)` writes the archive and returns the settings that read it. Cells of `columns` may have any text.

    `tabs`: its tables are separated by tabs, without quotes. `packed`: it is put into a zip or a tar file of this suffix. `pictures`: every
    image file in it is a record. `more`: every `more`-th record is written as two."""

    write: Callable[[Records, Path], list[str]]
    columns: tuple[str, ...] = ()
    packed: str = ""
    tabs: bool = False
    pictures: bool = False
    more: int = 0


@dataclass(frozen=True)
class Case:
    """A mutated archive. `settings` read it. `rows`: the number of its records, used or left out; None if a mutation makes it ambiguous."""

    settings: list[str]
    rows: int | None
    steps: list[str]

    def __str__(self) -> str:
        return f"{self.steps} {self.settings}"


def warm() -> None:
    """Import the readers and compose their configurations, once for all cases, which are forks of this process."""
    for name, module in READERS.items():
        importlib.import_module(module)
        runs.composed([f"data={name}", "data.path=x"])
    runs.composed(["data=store", "data.path=x"])
    source_options.compose = runs.composed
    Image.init()
    os.fsync = lambda descriptor: None  # no case is about the disk


def base(folder: Path) -> Records:
    """Write the photographs, and return their records: four species, every cell known."""
    rows = []
    for i in range(ROWS):
        genus, species = f"G{i % 4 // 2}", f"G{i % 4 // 2} s{i % 4}"
        path = folder / species / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 20), (18 * i, 9, 200)).save(path)
        known = (f"{i - 5}.5", f"{10 * i}.25", "30", f"2024-0{i % 9 + 1}-1{i % 9}", f"{i + 3:02d}:10:00", str(i * 7))
        row = {"path": f"{species}/{i}.jpg", "order": "O", "family": "F", "genus": genus, "species": species}
        rows.append(row | dict(zip(METADATA, known, strict=True)) | {"split": "val" if i > 9 else "train"})
    return Records(folder, rows)


# -- writers ----------------------------------------------------------------------------------------------------------------------


def _darwin_core(records: Records, folder: Path) -> list[str]:
    write_members(folder, archive(test_darwin_core.core_of(records), test_darwin_core.media_of(records)))
    return ["data=darwin_core", f"data.root={records.folder}"]


def _camtrap(records: Records, folder: Path) -> list[str]:
    test_camtrap_dp.biota_package(records, folder)
    return ["data=camtrap_dp", f"data.root={records.folder}"]


def _competition(records: Records, folder: Path) -> list[str]:
    for split in ("train", "val"):
        inat_competition.dump(folder / f"{split}.json", inat_competition.competition_of(records, split))
    return ["data=inat_competition", f"data.root={records.folder}"]


def _open_data(records: Records, folder: Path) -> list[str]:
    inat_open_data.open_data(records, folder)
    return ["data=inat_open_data"]


def _image_folder(records: Records, folder: Path) -> list[str]:
    for row in records.rows:
        path = folder / row["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(records.bytes(row))
    return ["data=image_folder"]


def _webdataset(records: Records, folder: Path) -> list[str]:
    test_webdataset.sharded(records, folder, "pax")
    return ["data=webdataset"]


def _arrow(records: Records, folder: Path) -> list[str]:
    hugging_face.save(folder, hugging_face.of_records(records), shards=2)
    return ["data=hugging_face"]


def _parquet(records: Records, folder: Path) -> list[str]:
    folder.mkdir()
    pq.write_table(hugging_face.of_records(records), folder / "data.parquet", row_group_size=5)
    return ["data=hugging_face"]


def _labels(records: Records, folder: Path) -> list[str]:
    folder.mkdir()
    names = {rank: sorted({row[rank] for row in records.rows}) for rank in LABELS}
    ids = {level: [names[rank].index(row[rank]) + 1 for row in records.rows] for level, rank in zip((40, 30, 20, 10), LABELS, strict=True)}
    paths = [row["path"] for row in records.rows]
    test_labels_h5.write(folder / "labels.h5", paths, ids, **test_labels_h5.metadata(records.rows))
    return ["data=labels_h5", f"data.root={records.folder}", "data.filters=[]"]


def _labels_and_images(records: Records, folder: Path) -> list[str]:
    folder.mkdir()
    given = test_labels_h5.images_file(folder, len(records.rows))[1]
    return [text for text in given if not text.startswith("data.path=")]


def _store(encoding: str) -> Callable[[Records, Path], list[str]]:
    def write(records: Records, folder: Path) -> list[str]:
        table = records.write(records.folder / "manifest.csv")
        prepare_store.prepare(prepare_store.parse(["manifest", str(folder), f"data.path={table}", "--processes=1", f"--images={encoding}"]))
        return ["data=store"]

    return write


def _manifest(records: Records, folder: Path) -> list[str]:
    import pyarrow as pa

    folder.mkdir()
    pq.write_table(pa.Table.from_pylist(records.rows), folder / "manifest.parquet")
    return ["data=manifest", f"data.root={records.folder}"]


ALL = (*LABELS, *METADATA, "split")
FORMATS = {
    "Darwin Core": Format(_darwin_core, ALL, tabs=True),
    "Darwin Core zip": Format(_darwin_core, ALL, ".zip", tabs=True),
    "Darwin Core tgz": Format(_darwin_core, ALL, ".tgz", tabs=True),
    "Camtrap DP": Format(_camtrap, ALL),
    "Camtrap DP zip": Format(_camtrap, ALL, ".zip"),
    "iNaturalist competition": Format(_competition, (*LABELS, "date")),
    "iNaturalist open data": Format(_open_data, ALL, tabs=True, more=5),
    "image folder": Format(_image_folder, pictures=True),
    "WebDataset": Format(_webdataset, ALL),
    "Hugging Face Arrow": Format(_arrow, ("order", "genus", "species", "time", "split")),
    "Hugging Face Parquet": Format(_parquet, ("order", "genus", "species", "time", "split")),
    "labels.h5": Format(_labels, LABELS),
    "labels.h5 and images.h5": Format(_labels_and_images),
    "store of JPEGs": Format(_store("jpeg"), LABELS),
    "store of pixels": Format(_store("raw"), LABELS),
    "Parquet manifest": Format(_manifest, ALL),
}
ONE_FILE = {
    "iNaturalist competition": "train.json",
    "labels.h5": "labels.h5",
    "labels.h5 and images.h5": "labels.h5",
    "Parquet manifest": "manifest.parquet",
}


def case(seed: int, number: int, folder: Path) -> Case:
    """Write the mutated archive `number` into `folder`."""
    rng = random.Random(f"archive {seed} {number}")
    name = list(FORMATS)[number % len(FORMATS)]
    form, place = FORMATS[name], folder / "archive"
    records, steps = base(folder / "photos"), [name]
    plain = [cells(rng, records.rows, form.columns, steps) for _ in range(rng.choice((0, 0, 1, 3)))]
    settings = form.write(records, place)
    count = len(records.rows)
    rows: int | None = count + (-(-count // form.more) if form.more else 0) if all(plain) or not form.tabs else None
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        if not damage_file(rng, place, steps):
            rows = None
    if form.packed:
        before = len(steps)
        members = {str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}
        place = pack(rng, folder / f"archive{form.packed}", members, steps)
        rows = rows if len(steps) == before else None
    if form.pictures and rows is not None:
        rows = sum(path.is_file() for path in place.rglob("*"))
    path = place / ONE_FILE[name] if name in ONE_FILE else place
    return Case([*settings, f"data.path={path}", *KEYS], rows, steps)
