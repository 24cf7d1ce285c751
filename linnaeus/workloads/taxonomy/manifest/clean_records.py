"""`CleanRecords`: the records of a data source with labels as classes of a tree and metadata as numbers, before the split is made.

`read_clean` reads a table, checks the image files, cleans the cells and numbers the taxa. Rows that are left out are counted by reason.
Impossible cells become null and are counted in the notes.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from linnaeus.errors import ConfigError, counted, list_some, quoted, shorten
from linnaeus.workloads.taxonomy.arrays.spool import spooled
from linnaeus.workloads.taxonomy.arrays.text_arrays import Names, first_places
from linnaeus.workloads.taxonomy.config import ManifestConfig, RecordsConfig
from linnaeus.workloads.taxonomy.images.image_files import MISSING, REASONS, FolderFiles, ImageFiles
from linnaeus.workloads.taxonomy.images.missing_files import similar_file
from linnaeus.workloads.taxonomy.images.url_files import UrlFiles, is_url
from linnaeus.workloads.taxonomy.manifest.columns import Columns, find_columns
from linnaeus.workloads.taxonomy.manifest.labels.row_labels import IdLabels, NameLabels
from linnaeus.workloads.taxonomy.manifest.labels.spellings import spelling_notes
from linnaeus.workloads.taxonomy.manifest.metadata_columns import clean_metadata, clean_weights
from linnaeus.workloads.taxonomy.manifest.records import Records, read
from linnaeus.workloads.taxonomy.manifest.splitting.given_split import check_training, given_split, read_split_file, split_name
from linnaeus.workloads.taxonomy.manifest.splitting.split import LEFT_OUT, NO_SIDE, test_as_validation
from linnaeus.workloads.taxonomy.manifest.tables.cleaning import Tally
from linnaeus.workloads.taxonomy.manifest.tables.column import Column
from linnaeus.workloads.taxonomy.manifest.tables.table import Table
from linnaeus.workloads.taxonomy.observations import TRAIN, VALIDATION, Metadata
from linnaeus.workloads.taxonomy.observations.left_out import LeftOut
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


@dataclass(frozen=True, kw_only=True)
class CleanRecords:
    """N rows of a data source that have a readable file and a label at some rank: labels, files, metadata, weights and split."""

    tree: TaxonomyTree
    labels: np.ndarray  # int64 [N, R]: class at each rank of `tree`, -1 for null
    files: ImageFiles
    sizes: np.ndarray  # int64 [N]: sizes of the files in bytes
    metadata: Metadata
    weight: np.ndarray | None  # float64 [N], NaN for null; None without data.weight_column
    split: np.ndarray | None  # int8 [N]: TRAIN, VALIDATION or LEFT_OUT; None if the source and the user do not give a split
    columns: dict[str, Column]  # the group column, columns whose names are those of groups, and columns that the caller requested
    excluded: LeftOut
    unreadable: tuple[tuple[str, str], ...]  # name and reason of each missing or empty file
    notes: list[str]
    hashes: np.ndarray | None = None  # uint64 [N], of the contents of the files; None: not read yet
    digests: np.ndarray | None = None  # uint64 [N], `digests` of the names; None: not computed yet

    def take(self, rows: np.ndarray) -> "CleanRecords":
        """Return only the records with the row numbers `rows`, int64 [M], in this order."""
        return replace(
            self,
            labels=self.labels[rows],
            files=self.files.take(rows),
            sizes=self.sizes[rows],
            metadata=self.metadata.take(rows),
            columns={name: Column(column.codes[rows], column.values) for name, column in self.columns.items()},
            weight=None if self.weight is None else self.weight[rows],
            split=None if self.split is None else self.split[rows],
            hashes=None if self.hashes is None else self.hashes[rows],
            digests=None if self.digests is None else self.digests[rows],
        )


def read_clean(config: ManifestConfig, test: bool | None = False, more: Sequence[str] = ()) -> tuple[CleanRecords, ManifestConfig]:
    """Return the records of a data source, and the configuration with names of columns in place of `auto`.

    `test`: True replaces the validation rows by the test rows, False leaves the test rows out, None keeps all rows. `more`: names of
    further columns to read. Raise `ConfigError` if the table or a column does not exist, if too many files cannot be used, or if ids are
    unknown."""
    records, columns = read_columns(config, lambda header: _existing(more, header))
    config = columns.config
    reader = label_reader(columns)
    rows = usable_rows(records, reader, columns, test)
    del records  # the rows that are left out
    notes = [*columns.notes, *rows.notes]
    tree, labels = reader.read(rows.table, notes)
    notes += [*tree.conflicts(labels), *spelling_notes(tree, labels)]
    paths = rows.files.names
    tally = Tally(paths)
    again, contradicts = repeated_photographs(paths, labels)
    tally.add("photograph that occurs in an earlier row", again & ~contradicts)
    tally.add("photograph that occurs in an earlier row with another taxon", contradicts)
    metadata = clean_metadata(rows.table, config, tally)
    weight = clean_weights(rows.table, config, tally)
    notes += tally.notes()
    kept = [name for name in (config.group_column, *columns.group_like, *more) if name is not None]
    clean = CleanRecords(
        tree=tree,
        labels=spooled(labels),
        files=rows.files,
        sizes=rows.sizes,
        metadata=metadata,
        weight=weight,
        split=rows.split,
        columns={name: rows.table.columns[name] for name in kept},
        excluded=rows.excluded,
        unreadable=rows.unreadable,
        notes=notes,
    )
    return clean, config


def repeated_photographs(paths: Names, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (rows whose photograph also occurs in an earlier row, bool [N]; those of them with another taxon than the first such row at a
    rank where both have one, bool [N]). paths: [N]. labels: int64 [N, R], -1 for null."""
    first = first_places(paths)
    again = first < np.arange(len(first))
    contradicts = again.copy()
    contradicts[again] = contradict(labels[again], labels[first[again]])
    return again, contradicts


def contradict(labels: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return bool [N], True where two lineages have different taxa at a rank where both have one. labels, others: int64 [N, R], -1 for
    null."""
    return ((labels != others) & (labels >= 0) & (others >= 0)).any(axis=1)


def read_columns(
    config: ManifestConfig, more: Callable[[Sequence[str]], Sequence[str]] = lambda header: (), labels: bool = True
) -> tuple[Records, Columns]:
    """Return the records of a data source with the columns that training reads, and the description of these columns.

    `more`: function from the header (names of columns) to the names of further columns to read. `labels`: False: do not read columns of
    labels."""
    found: list[Columns] = []  # set when the header has been read

    def choose(header: Sequence[str], **keys: Any) -> list[str]:
        columns = find_columns(replace(config, **keys), header, labels)
        if (path := columns.config.split_file) is not None:  # a table that is not UTF-8 is read, and chosen from, twice
            columns = columns._replace(split_file=found[0].split_file if found else read_split_file(path))
        found[:] = [columns]
        ids = [columns.split_file.key] if columns.split_file is not None and columns.split_file.key in header else []
        return list(dict.fromkeys([*columns.read(), *ids, *more(header)]))

    records = read(config, choose)
    return records, found[0]


def _existing(names: Sequence[str], header: Sequence[str]) -> Sequence[str]:
    """Return `names`. Raise `ConfigError` if a name is not in the header."""
    if absent := [name for name in names if name not in header]:
        raise ConfigError(f"the manifest does not have a column {quoted(absent[0])}; the columns are {list_some(header)}")
    return names


def label_reader(columns: Columns) -> NameLabels | IdLabels:
    """Return the reader of labels: from ids in a table of taxa if `data.taxonomy` is set, otherwise from names of taxa in the rank
    columns."""
    config = columns.config
    return NameLabels(columns.ranks, check_order=bool(config.rank_columns)) if config.taxonomy is None else IdLabels(config)


def without_test(
    split: np.ndarray | None, names: Names, config: RecordsConfig, test: bool, excluded: LeftOut
) -> tuple[np.ndarray | None, np.ndarray]:
    """Return the split without test rows, int8 [N] or None, and bool [N], False for the rows to leave out.

    `names`: [N], names of the photographs. `test`: if True, test rows become validation rows, and validation rows are left out. With
    data.folds, validation rows become training rows, which are divided later. The rows left out are added to `excluded`. Raise
    `ConfigError` if `test` is True and there are no test rows."""
    if split is None:
        if test:
            raise ConfigError(
                "--split=test: the manifest has no split column, so it has no test rows; set data.split_column or data.split_file"
            )
        return None, np.ones(len(names), dtype=bool)
    if config.folds is not None:
        split = np.where(split == VALIDATION, TRAIN, split).astype(np.int8)
    split = test_as_validation(split) if test else split
    used = split != LEFT_OUT
    excluded.add(f"called test in {split_name(config)}, neither trained on nor validated on", names[np.flatnonzero(~used)])
    return split, used


@dataclass(frozen=True)
class UsableRows:
    """N rows of the source's table that are used, and the reasons why other rows are not used."""

    in_use: np.ndarray  # bool, for each row of the source's table: True for the N rows that are used
    left_out: dict[str, np.ndarray]  # reason -> numbers of the rows that are not used (int64), except test rows
    all_sizes: np.ndarray  # int64: bytes of the file of each row of the source's table
    table: Table
    files: ImageFiles
    sizes: np.ndarray
    split: np.ndarray | None
    excluded: LeftOut
    unreadable: tuple[tuple[str, str], ...]
    notes: list[str]


def usable_rows(records: Records, labels: NameLabels | IdLabels, columns: Columns, test: bool | None) -> UsableRows:
    """Return the rows that have a readable file and a label. `test`: as in `read_clean`.

    Raise `ConfigError` if more than data.max_bad_fraction of the files cannot be used, or if no row is left."""
    config, table = columns.config, records.table
    notes = list(table.notes)
    excluded = LeftOut(table.excluded)
    column = table.columns[config.image_column]
    files = records.files(column.values)
    if config.root is not None and config.name != "manifest" and not is_url(config.root) and not isinstance(files, FolderFiles | UrlFiles):
        place = quoted(records.place, 120)
        raise ConfigError(f"data.root: {quoted(config.root, 120)} has no effect, because the photographs are in {place}; leave it out")
    sizes = files.sizes()[column.codes]
    paths = files.names[column.codes]
    notes += _outside_note(files)
    split, reason = given_split(table, paths, config, columns.split_file, notes)
    check_training(split, config)
    on_a_side = np.ones(len(table), dtype=bool) if split is None else split != NO_SIDE
    in_use = on_a_side.copy()
    if test is not None:
        split, trained = without_test(split, paths, config, test, excluded)
        in_use &= trained
    bad = in_use & (sizes <= 0)
    left_out = {reason: np.flatnonzero(~on_a_side)}
    left_out |= {reason: np.flatnonzero(bad & (sizes == code)) for code, reason in REASONS.items()}
    numbers = table.row_numbers()
    unreadable = tuple((str(paths[i]) or f"row {numbers[i]}", REASONS[int(sizes[i])]) for i in np.flatnonzero(bad).tolist())
    _check_unreadable(unreadable, int(in_use.sum()), records.place, config, files)
    in_use = in_use & ~bad
    for reason, rows in labels.unlabelled(table, in_use).items():
        left_out[reason] = np.flatnonzero(rows)
        in_use = in_use & ~rows
    left_out = {reason: rows for reason, rows in left_out.items() if len(rows)}
    for reason, rows in left_out.items():
        excluded.add(reason, (str(paths[i]) or f"row {numbers[i]}" for i in rows.tolist()))
    if not in_use.any():
        reasons = list_some([f"{reason} ({count})" for reason, count in excluded.items()])
        advice = _missing_file(unreadable, files) or "use one with readable photographs and labels"
        raise ConfigError(f"data.path: no row of {quoted(config.path, 120)} can be used: {reasons}; {advice}")
    if in_use.all():
        return UsableRows(in_use, left_out, sizes, table, files.take(column.codes), sizes, split, excluded, unreadable, notes)
    keep = np.flatnonzero(in_use)
    split = split[keep] if split is not None else None
    used = files.take(column.codes[keep])
    return UsableRows(in_use, left_out, sizes, table.take(keep), used, sizes[keep], split, excluded, unreadable, notes)


def _outside_note(files: ImageFiles) -> list[str]:
    """Return a line with the number of image paths that lead out of the folder of the photographs, and an example; [] without such
    paths."""
    if not isinstance(files, FolderFiles):
        return []
    outside = {path for path in files.names if path.startswith("/") or (".." in path and os.path.normpath(path).split("/")[0] == "..")}
    if not outside:
        return []
    return [f"{counted(len(outside), 'image path')} outside of the folder {quoted(files.root, 120)}, such as {quoted(min(outside))}"]


def _check_unreadable(unreadable: tuple[tuple[str, str], ...], rows: int, place: str, config: ManifestConfig, files: ImageFiles) -> None:
    """Raise ConfigError when more than data.max_bad_fraction of the files cannot be used."""
    if len(unreadable) > config.max_bad_fraction * rows:
        shown = ", ".join(f"{shorten(name)} ({reason})" for name, reason in unreadable[:2])
        advice = _missing_file(unreadable, files) or "check data.root and data.image_column"
        raise ConfigError(
            f"data.max_bad_fraction: {len(unreadable)} of {rows} image files under {quoted(place, 120)} cannot be used, more than "
            f"{config.max_bad_fraction:g}: {shown}{', ...' if len(unreadable) > 2 else ''}; {advice}"
        )


def _missing_file(unreadable: tuple[tuple[str, str], ...], files: ImageFiles) -> str:
    """Return a text about the first file of `unreadable` that is missing: the path that was read, or a file beside it whose name looks the
    same; "" if no file in a folder is missing."""
    missing = next((name for name, reason in unreadable if reason == REASONS[MISSING]), None)
    if missing is None or not isinstance(files, FolderFiles):
        return ""
    path = os.path.join(files.root, missing)
    return similar_file(path) or f"there is no file {quoted(path, 200)}; check data.root and data.image_column"
