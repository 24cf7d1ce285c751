"""Read a source for the doctor: all its rows, the cells as they are written, and which rows and cells training does not use."""

import datetime
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.arrays.text_arrays import Names
from linnaeus.workloads.taxonomy.config import ManifestConfig
from linnaeus.workloads.taxonomy.doctor.findings import Inspected, Places
from linnaeus.workloads.taxonomy.doctor.known_places import capitals
from linnaeus.workloads.taxonomy.images.image_files import ImageFiles
from linnaeus.workloads.taxonomy.images.url_files import UrlFiles
from linnaeus.workloads.taxonomy.manifest.clean_records import label_reader, read_columns, usable_rows
from linnaeus.workloads.taxonomy.manifest.columns import GROUP_NAMES, Columns, plain_name
from linnaeus.workloads.taxonomy.manifest.metadata_columns import Cells, clean_metadata
from linnaeus.workloads.taxonomy.manifest.records import Records
from linnaeus.workloads.taxonomy.manifest.splitting.given_split import check_training, given_split
from linnaeus.workloads.taxonomy.manifest.tables.cleaning import Tally, is_null
from linnaeus.workloads.taxonomy.manifest.tables.dates import first_date, hour_of_day
from linnaeus.workloads.taxonomy.manifest.tables.table import Table

ID_NAMES = {"id", "uuid", "photoid", "photouuid", "imageid", "imageuuid", "mediaid", "fileid", "recordid", "rowid"}


class RowTally(Tally):
    """`Tally` (counts of rows by reason) that also stores the numbers of the rows whose cells are set to missing.

    `emptied`: (role of the column, reason) -> row numbers, int64 [K]. `refused`: role -> message for columns without a value that can be
    used, which are not in `emptied`: such a column needs another setting, not empty cells."""

    def __init__(self, names: Names) -> None:
        super().__init__(names)
        self.emptied: dict[tuple[str, str], np.ndarray] = {}
        self.refused: dict[str, str] = {}

    def add(self, reason: str, rows: np.ndarray, emptied: str = "") -> None:
        super().add(reason, rows)
        if emptied and emptied not in self.refused and rows.any():
            self.emptied[emptied, reason] = np.flatnonzero(rows)

    def refuse(self, role: str, error: ConfigError) -> None:
        self.refused[role] = str(error)


def inspect(config: ManifestConfig, every_column: bool = False, places: Places | None = None) -> Inspected:
    """Return the records of a source. `every_column`: True reads all columns; False reads only the columns that are checked. `places`: for
    `near_known_places`; None: the capitals.

    Raise `ConfigError` if the source cannot be read at all; any number of its rows may be unusable."""
    records, columns = read_columns(replace(config, max_bad_fraction=1.0), _named if every_column else _identifying)
    records = records._replace(files=partial(_tolerant_files, records.files))
    table = records.table
    problems: list[str] = []
    split, columns = _split(records, columns, problems)
    config = columns.config
    reader = label_reader(columns)
    usable = usable_rows(records, reader, columns, test=None)
    tree, used_labels = reader.read(usable.table, [], problems)
    labels = np.full((len(table), len(tree.ranks)), -1, dtype=np.int64)
    labels[usable.in_use] = used_labels
    image = table.columns[config.image_column]
    distinct = records.files(image.values)
    files = distinct.take(image.codes)
    tally = RowTally(files.names)
    metadata = clean_metadata(table, config, tally)
    cells = Cells(table, config, RowTally(files.names))
    named = {name: plain_name(name) for name in table.columns if name not in columns.ranks.values()}
    return Inspected(
        config=config,
        table=table,
        rank_columns=columns.ranks,
        tree=tree,
        labels=labels,
        files=files,
        sizes=usable.all_sizes,
        split=split,
        latitude=cells.numbers("latitude"),
        longitude=cells.numbers("longitude"),
        uncertainty=cells.numbers("uncertainty"),
        metadata=metadata,
        elevation=cells.numbers("elevation"),
        date=_dates(table, config),
        hour=metadata.hour.astype(np.float64) if config.time_column is not None else _hours_of_dates(table, config),
        groups={name: table.columns[name] for name, plain in named.items() if plain in GROUP_NAMES or name == config.group_column},
        ids={name: table.columns[name] for name, plain in named.items() if plain in ID_NAMES},
        places=capitals() if places is None else places,
        problems=[*problems, *tally.refused.values()],
        excluded=table.excluded,
        left_out=usable.left_out,
        missing=tally.emptied,
    )


def _tolerant_files(files: Callable[[Sequence[str]], ImageFiles], names: Sequence[str]) -> ImageFiles:
    """Return `files(names)`, whose `sizes` does not raise an error for photographs on a server that does not answer."""
    found = files(names)
    return found.tolerant() if isinstance(found, UrlFiles) else found


def _split(records: Records, columns: Columns, problems: list[str]) -> tuple[np.ndarray | None, Columns]:
    """Return the given split of all rows, int8 [N], and `columns`. If the split cannot be read, append the message to `problems`, and
    return None and columns without the split."""
    config, file = columns.config, columns.split_file
    column = records.table.columns[config.image_column]
    names = records.files(column.values).names[column.codes] if file is not None else np.empty(0, dtype=str)
    try:
        split, _ = given_split(records.table, names, config, file, [])
        check_training(split, config)
        return split, columns
    except ConfigError as error:
        problems.append(str(error))
        config = replace(config, split_column=None, split_file=None, split_dates={})
        return None, columns._replace(config=config, split_file=None)


def _identifying(header: Sequence[str]) -> list[str]:
    """Return the names in `header` of columns of row ids and of groups, such as observations, observers and sites."""
    return [name for name in header if plain_name(name) in ID_NAMES | GROUP_NAMES]


def _named(header: Sequence[str]) -> list[str]:
    """Return the column names in `header` that are not empty."""
    return [name for name in header if name]


def _dates(table: Table, config: ManifestConfig) -> np.ndarray:
    """Return the first day of the date in each row, datetime64[D] [N]; NaT where the cell is empty or unreadable."""
    if config.date_column is None:
        return np.full(len(table), "NaT", dtype="datetime64[D]")
    column = table.columns[config.date_column]
    found = [None if is_null(value) else first_date(value, config.date_format) for value in column.values]
    days = [None if not isinstance(day, datetime.date) else day for day in found]
    return np.array(days, dtype="datetime64[D]")[column.codes]


def _hours_of_dates(table: Table, config: ManifestConfig) -> np.ndarray:
    """Return the times of day in the column of dates, in hours, float64 [N]. NaN where there is none, or where it is 0:00, which also
    stands for a date without a time."""
    if config.date_column is None:
        return np.full(len(table), np.nan)
    column = table.columns[config.date_column]
    found = [hour_of_day(value, config.date_format) for value in column.values]
    hours = [hour if isinstance(hour, float) and hour > 0 else np.nan for hour in found]
    return np.array(hours, dtype=np.float64)[column.codes]
