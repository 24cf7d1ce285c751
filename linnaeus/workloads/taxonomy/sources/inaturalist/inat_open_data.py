"""Read data=inat_open_data: the tables of the iNaturalist Open Data, and the photographs in these tables that were downloaded.

    photos.csv.gz           photo_id, observation_uuid, observer_id, extension, license; a row per photograph of an observation
    observations.csv.gz     observation_uuid, taxon_id, latitude, longitude, positional_accuracy, observed_on, quality_grade
    taxa.csv.gz             the taxa with the ids of their ancestors
    photos/731/medium.jpg   photograph 731 in the size that data.photo_size chooses

The tables have hundreds of millions of rows. They are read in blocks, and only the rows of downloaded photographs are kept in memory. If
data.root is a URL, all photographs of the table are used and kept. Cells are separated by tabs and not quoted. Some photographs have an
observation that is not in the table, and some observations have no photograph.
"""

import gzip
import os
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.dataset

from linnaeus.errors import ConfigError, counted, list_some, one_line, quoted
from linnaeus.workloads.taxonomy.config import InatOpenDataConfig
from linnaeus.workloads.taxonomy.images.image_files import MISSING, FolderFiles
from linnaeus.workloads.taxonomy.images.url_files import is_url
from linnaeus.workloads.taxonomy.manifest.records import Choose, Records, in_folder
from linnaeus.workloads.taxonomy.manifest.tables.column import from_arrow
from linnaeus.workloads.taxonomy.manifest.tables.table import UNEVEN, Table, without_long_values
from linnaeus.workloads.taxonomy.observations.left_out import LeftOut

BLOCK = 1 << 22  # bytes of a table that are read at once; a row must not be longer
OBSERVATION, GRADE = "observation_uuid", "quality_grade"
NOT_DOWNLOADED = "photograph that was not downloaded"


def read_records(config: InatOpenDataConfig, choose: Choose) -> Records:
    """Return the downloaded photographs, in the order of their table.

    Raise ConfigError if a table or a needed column does not exist, a table cannot be read, or no photograph was downloaded."""
    folder = Path(config.path).expanduser()
    root = None if is_url(config.root) else Path(config.root or folder).expanduser()
    photos = _Rows(_find(folder, "photos"), ("photo_id", OBSERVATION, "extension"))
    observations = _Rows(_find(folder, "observations"), (OBSERVATION, "taxon_id", *[GRADE] * config.research_grade))
    taxonomy = config.taxonomy or str(_find(folder, "taxa"))
    header = list(dict.fromkeys(("path", *photos.header, *observations.header)))
    chosen = choose(header, taxonomy=taxonomy, taxon_column=config.taxon_column or "taxon_id")

    downloaded = None if root is None else _downloaded(root)
    rows = photos.read([*photos.needed, *chosen], "photo_id", downloaded, NOT_DOWNLOADED)
    excluded = photos.left_out
    path = pc.binary_join_element_wise("photos/", rows["photo_id"], f"/{config.photo_size}.", rows["extension"], "")
    rows = rows.append_column("path", path)
    if root is not None and downloaded is not None:
        unlisted = downloaded.filter(pc.invert(pc.is_in(downloaded, value_set=rows["photo_id"].combine_chunks())))
        excluded.add(f"folder of a photograph that is not in {photos.path.name}", (f"photos/{name}" for name in unlisted.to_pylist()))
        rows = _with_files(rows, root, config.photo_size, excluded)
    found = observations.read([*observations.needed, GRADE, *chosen], OBSERVATION, rows[OBSERVATION].unique())
    place = pc.index_in(rows[OBSERVATION], value_set=found[OBSERVATION].combine_chunks())
    count = len(rows)
    excluded.add("photograph whose observation is not in the table", _ids(rows, place.is_null()))
    rows = rows.filter(place.is_valid())
    repeated = _repeated(found, observations.path.name)
    found = found.take(place.drop_null())
    notes = [f"{photos.path.name}: {counted(photos.total, 'photograph')}, {count:,} of them {'downloaded' if root else 'read by URL'}"]
    notes += [f"{observations.path.name}: {counted(n, 'row')} left out: {reason}" for reason, n in observations.left_out.items()]
    notes += repeated
    if GRADE in found.column_names:
        grades = {pair["values"]: pair["counts"] for pair in found[GRADE].value_counts().to_pylist()}
        notes.append(f"quality grades: {list_some([f'{grade} ({count:,})' for grade, count in sorted(grades.items())])}")
    if config.research_grade:
        research = pc.fill_null(pc.equal(found[GRADE], "research"), False)
        excluded.add("photograph of an observation without research grade", _ids(rows, pc.invert(research)))
        rows, found = rows.filter(research), found.filter(research)
    if not len(rows):
        shown = list_some([f"{reason} ({count:,})" for reason, count in excluded.items()]) or "there are none"
        raise ConfigError(f"data.path: no photograph of {quoted(str(folder), 120)} can be used: {shown}")
    columns = {name: from_arrow((rows if name in rows.column_names else found)[name]) for name in chosen}
    return in_folder(without_long_values(Table(columns, excluded=excluded, notes=tuple(notes))), config, folder)


def _repeated(observations: pa.Table, name: str) -> list[str]:
    """Return a line with the number of rows of observations that have an earlier row, and of those with another taxon, and an example; []
    without such rows. `name`: name of the table."""
    ids = observations[OBSERVATION].combine_chunks()
    first = pc.index_in(ids, value_set=ids).to_numpy(zero_copy_only=False)
    again = np.flatnonzero(first != np.arange(len(first)))
    if not len(again):
        return []
    taxon = pc.fill_null(observations["taxon_id"], "")
    differs = pc.not_equal(taxon.take(again), taxon.take(first[again])).to_numpy()
    example = ids[int(again[np.argmax(differs)])]
    return [
        f"{name}: {counted(len(again), 'row')} left out: an observation that is in an earlier row, "
        f"{int(differs.sum()):,} of them with another taxon, such as {example}"
    ]


def _ids(photos: pa.Table, where: pa.ChunkedArray) -> Iterator[str]:
    """Return a name such as "photograph 731" for each of the `photos` where `where`, bool [N], is True."""
    return (f"photograph {number}" for number in photos["photo_id"].filter(where).to_pylist())


def _find(folder: Path, name: str) -> Path:
    """Return the path of a table, NAME.csv.gz or NAME.csv. Raise `ConfigError` if the folder has neither."""
    for path in (folder / f"{name}.csv.gz", folder / f"{name}.csv"):
        if os.path.isfile(path):
            return path
    raise ConfigError(
        f"data.path: {quoted(str(folder), 200)} does not contain {name}.csv.gz or {name}.csv; set the folder with the tables photos, "
        "observations and taxa of the iNaturalist Open Data"
    )


def _downloaded(root: Path) -> pa.Array:
    """Return the ids of the photographs that have a folder in root/photos. Raise `ConfigError` if there are no such folders."""
    folder = root / "photos"
    try:
        ids = [name for name in os.listdir(folder) if name.isdigit()]
    except OSError as error:
        raise ConfigError(f"data.root: {quoted(str(folder), 200)} cannot be read: {error.strerror}; download photographs to it") from error
    if not ids:
        raise ConfigError(f"data.root: {quoted(str(folder), 200)} does not contain a folder of a photograph, such as photos/731/medium.jpg")
    return pa.array(ids)


def _with_files(rows: pa.Table, root: Path, size: str, excluded: LeftOut) -> pa.Table:
    """Return the rows whose photographs have a file of this size. Add the other photographs to `excluded`.

    Raise `ConfigError` if no photograph has such a file."""
    exist = FolderFiles(root, rows["path"].to_pylist()).sizes() != MISSING
    if not exist.any():
        where = f"the folders in {quoted(str(root / 'photos'), 120)} are not those of photographs in the table"
        if len(rows):
            names = sorted(os.listdir(root / "photos" / rows["photo_id"][0].as_py()))
            where = f"photos/{rows['photo_id'][0]} in {quoted(str(root), 120)} contains {list_some(names, 4) or 'no file'}"
        raise ConfigError(f"data.photo_size: no photograph was downloaded in the size {size}: {where}")
    excluded.add(NOT_DOWNLOADED, _ids(rows, pa.array(~exist)))
    return rows.filter(pa.array(exist))


class _Rows:
    """Reader of some rows of a tab-separated table without quotes."""

    def __init__(self, path: Path, needed: Sequence[str]) -> None:
        """Read the names of the columns. Raise `ConfigError` if a column of `needed` does not exist, or two columns have the same name."""
        self.path, self.needed = path, needed
        self.total = 0  # number of rows that were read
        self.left_out, self._lock = LeftOut(), threading.Lock()
        try:
            with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
                self.header = file.readline(BLOCK).decode("utf-8-sig").rstrip("\r\n").split("\t")
        except (OSError, EOFError, UnicodeError, zlib.error) as error:
            raise self._unreadable(error) from error
        for name in needed:
            if name not in self.header:
                raise ConfigError(
                    f"data.path: {quoted(str(path), 120)} does not have a column {name}; its columns are {list_some(self.header)}"
                )
        if len(set(self.header)) < len(self.header):
            raise ConfigError(f"data.path: {quoted(str(path), 120)} has two columns of one name: {list_some(self.header, 20)}; rename one")

    def read(self, columns: Sequence[str], key: str, values: pa.Array | None, others: str = "") -> pa.Table:
        """Return the rows whose cell in the column `key` is in `values`, with the columns in `columns` that the table has. None: all rows.

        Rows with a wrong number of cells are added to `left_out`. If `others` is not empty, all other rows are added too, with `others` as
        the reason. Raise `ConfigError` if the table cannot be read."""

        def skip(row: pa.csv.InvalidRow) -> str:
            with self._lock:  # called by several threads
                self.left_out.add(UNEVEN, [f"the row {row.text!r} of {self.path.name}"])
            return "skip"

        schema = pa.schema([(name, pa.string()) for name in self.header])
        form = pa.dataset.CsvFileFormat(
            parse_options=pa.csv.ParseOptions(delimiter="\t", quote_char=False, invalid_row_handler=skip),
            convert_options=pa.csv.ConvertOptions(column_types=schema),
            read_options=pa.csv.ReadOptions(block_size=BLOCK, encoding="utf-8-sig"),  # checked before rows are passed to `skip`
        )
        field = pa.dataset.field
        wanted = {name: field(name) for name in columns if name in self.header}
        wanted[""] = field(key).is_valid() if values is None else field(key).isin(values)
        try:
            scanner = pa.dataset.dataset(str(self.path), schema=schema, format=form).scanner(columns=wanted)
            batches = [self._kept(batch, others) for batch in scanner.to_batches()]
        except (pa.ArrowException, OSError, UnicodeError) as error:
            raise self._unreadable(error) from error
        self.total += self.left_out.get(UNEVEN, 0)
        return pa.Table.from_batches(batches, scanner.projected_schema).drop_columns("")

    def _kept(self, batch: pa.RecordBatch, others: str) -> pa.RecordBatch:
        if others:
            dropped = np.flatnonzero(~batch.column("").to_numpy(zero_copy_only=False))
            with self._lock:
                self.left_out.add_rows(others, self.total + 1 + dropped, f"{self.path.name}, rows of other lengths not counted")
        self.total += batch.num_rows
        return batch.filter(batch.column(""))

    def _unreadable(self, error: Exception) -> ConfigError:
        return ConfigError(f"data.path: {quoted(str(self.path), 120)} cannot be read: {one_line(error)}; download it again")
