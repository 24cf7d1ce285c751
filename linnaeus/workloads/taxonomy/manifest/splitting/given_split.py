"""Read the split that the user gives: a column with train, val and test (`data.split_column`), a file with the split of each id
(`data.split_file`), or days from which on rows are for validation or test (`data.split_dates`). Only one of them can be given."""

import csv
import datetime
import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from linnaeus.errors import ConfigError, counted, list_some, quoted
from linnaeus.workloads.taxonomy.arrays.text_arrays import Names, digests, unique_strings
from linnaeus.workloads.taxonomy.arrays.text_lines import BLOCK
from linnaeus.workloads.taxonomy.config import ManifestConfig, RecordsConfig
from linnaeus.workloads.taxonomy.manifest.splitting.split import LEFT_OUT, NO_SIDE, is_test, is_validation, split_from_column
from linnaeus.workloads.taxonomy.manifest.tables.cleaning import is_null
from linnaeus.workloads.taxonomy.manifest.tables.column import Column
from linnaeus.workloads.taxonomy.manifest.tables.dates import date_range
from linnaeus.workloads.taxonomy.manifest.tables.table import Table, read_table
from linnaeus.workloads.taxonomy.observations import TRAIN, VALIDATION

PHOTOGRAPH = "photograph"  # name of the column of ids in a split file whose ids are the names of photographs
NOT_IN_FILE = "not in the file data.split_file"
UNDATED = "no date, or one that is on both sides of a day in data.split_dates"
WORDS = {TRAIN: "train", VALIDATION: "val", LEFT_OUT: "test"}


class SplitFile(NamedTuple):
    """Content of a split file: ids and the side of each."""

    key: str  # name of the column of ids: a column of the source, or `PHOTOGRAPH`
    ids: Column  # [K]
    side: np.ndarray  # int8 [K]: TRAIN, VALIDATION or LEFT_OUT
    hash: str  # SHA-256 of the file, hexadecimal


def split_key(config: RecordsConfig) -> str:
    """Return the key of the configuration that gives the split."""
    dates = isinstance(config, ManifestConfig) and bool(config.split_dates)
    return "data.split_file" if config.split_file is not None else "data.split_dates" if dates else "data.split_column"


def split_name(config: RecordsConfig) -> str:
    """Return the name of the given split for messages: the quoted column, or the key of the configuration."""
    key = split_key(config)
    return quoted(str(config.split_column)) if key == "data.split_column" else key


def without_column(config: ManifestConfig, auto: str) -> ManifestConfig:
    """Return the configuration with split_column=None if a file or dates give the split. Raise `ConfigError` if a column is set, too.
    `auto`: value of split_column that means any column with the name of a split."""
    given = [key for key in ("split_file", "split_dates") if getattr(config, key)]
    if len(given) > 1 or (given and config.split_column not in (None, auto)):
        both = given if len(given) > 1 else ["split_column", *given]
        raise ConfigError(f"data.{both[0]} and data.{both[1]} both define the split; set only one of them")
    return replace(config, split_column=None) if given else config


def read_split_file(path: str) -> SplitFile:
    """Return the content of a CSV or Parquet file with a column of ids and a column `split`.

    Raise `ConfigError` if the file cannot be read, has other columns, or if an id is on two sides."""
    header: list[str] = []

    def choose(names: Sequence[str]) -> list[str]:
        ids = [PHOTOGRAPH] if PHOTOGRAPH in names else [name for name in names if name not in ("", "split")][:1]
        if not ids or "split" not in names:
            raise ConfigError(
                f"data.split_file: {quoted(path, 120)} has the columns {list_some(names)}; it must have {PHOTOGRAPH} (or another id of the "
                "source) and split"
            )
        header[:] = [*ids, "split"]
        return header

    file = Path(path).expanduser()
    table = read_table(file, choose, "data.split_file", whole=True)
    key = header[0]
    side = split_from_column(table.columns["split"], "split", "data.split_file")
    ids = table.columns[key]
    _, first, number = np.unique(digests(ids.values), return_index=True, return_inverse=True)  # equal if they differed in spaces
    low, high = np.full(len(first), NO_SIDE), np.full(len(first), -1)
    np.minimum.at(low, number[ids.codes], side)
    np.maximum.at(high, number[ids.codes], side)
    if (two := np.flatnonzero(low < high)).size:
        example = quoted(ids.values[first[two].min()])
        raise ConfigError(f"data.split_file: {counted(len(two), 'id')} on two sides, such as {example}; keep one of its lines")
    with file.open("rb") as content:
        return SplitFile(key, ids, side, hashlib.file_digest(content, "sha256").hexdigest())


def file_split(file: SplitFile, names: Names, columns: Mapping[str, Column], notes: list[str]) -> np.ndarray:
    """Return the split of N rows, int8 [N], `NO_SIDE` for a row whose id is not in the file. Append a line to `notes`.

    `names`: [N], names of the photographs; spaces at their ends are ignored, as in the file. `columns`: name -> column of the source, [N].
    Raise `ConfigError` if the source does not have the column of ids, or no row is in the file."""
    if file.key != PHOTOGRAPH and file.key not in columns:
        raise ConfigError(
            f"data.split_file: its ids are of {quoted(file.key)}, which the source does not have; name the column {PHOTOGRAPH} if they "
            f"are names of photographs, or as one of {list_some([quoted(name) for name in columns]) or 'none'}"
        )
    own, code = (
        (digests(map(str.strip, names)), np.arange(len(names)))
        if file.key == PHOTOGRAPH
        else (digests(columns[file.key].values), columns[file.key].codes)
    )
    keys = digests(file.ids.values)[file.ids.codes]
    keys, first = np.unique(keys, return_index=True)
    place = np.minimum(np.searchsorted(keys, own), len(keys) - 1)
    found = keys[place] == own
    split = np.where(found, file.side[first[place]], np.int8(NO_SIDE))[code].astype(np.int8)
    used = np.unique(place[code][found[code]])
    if not len(used):
        raise ConfigError(
            f"data.split_file: not one of its {counted(len(keys), 'id')}, such as {quoted(file.ids.values[file.ids.codes[0]])}, is a "
            f"{file.key} of the source; check the ids"
        )
    lost = np.setdiff1d(np.arange(len(keys)), used)
    example = f", such as {quoted(file.ids.values[file.ids.codes[first[lost[0]]]])}" if len(lost) else ""
    unknown = f"; {counted(len(lost), 'id')} of the file not in the source{example}" if len(lost) else ""
    notes.append(f"split of data.split_file (sha256 {file.hash}): {sides_text(split)}{unknown}")
    return split


def sides_text(split: np.ndarray) -> str:
    """Return the number of rows on each side, such as "80 train, 20 test"."""
    return ", ".join(f"{int((split == side).sum()):,} {word}" for side, word in WORDS.items() if (split == side).any())


def split_lines(names: Names, split: np.ndarray) -> Iterator[str]:
    """Yield the text of a split file: the header, then blocks of lines, one for each photograph. `names`: [N]. `split`: int8 [N], rows with
    `NO_SIDE` are skipped."""
    yield f"{PHOTOGRAPH},split\n"
    rows = np.flatnonzero(split != NO_SIDE)
    _, first = np.unique(unique_strings(names[rows])[1] * (NO_SIDE + 1) + split[rows], return_index=True)
    rows = rows[np.sort(first)]
    for start in range(0, len(rows), BLOCK):
        block, text = rows[start : start + BLOCK], io.StringIO()
        words = [WORDS[side] for side in split[block].tolist()]
        csv.writer(text, lineterminator="\n").writerows(zip(names[block].tolist(), words, strict=True))
        yield text.getvalue()


def days_of(config: ManifestConfig) -> dict[int, datetime.date]:
    """Return side -> first day of data.split_dates. Raise `ConfigError` for an unknown word, a text that is not a day, or validation after
    test."""
    days: dict[int, datetime.date] = {}
    for word, text in config.split_dates.items():
        side = VALIDATION if is_validation(word) else LEFT_OUT if is_test(word) else None
        try:
            day = datetime.date.fromisoformat(str(text))
        except ValueError:
            day = None
        if side is None or day is None:
            raise ConfigError(
                f"data.split_dates: {quoted(f'{word}: {text}')} is not the first day of val or test; use {{test: 2024-01-31}}"
            )
        days[side] = day
    if len(days) == 2 and days[VALIDATION] >= days[LEFT_OUT]:
        raise ConfigError("data.split_dates: val must begin before test; rows from the day of test on are test rows")
    return days


def date_split(column: Column, config: ManifestConfig, notes: list[str]) -> np.ndarray:
    """Return the split of N rows by the dates in `column`, int8 [N]: `NO_SIDE` without a date, or for an interval that contains the first
    day of a side. Append a line to `notes`."""
    days = days_of(config)

    def side_of(text: str) -> int:
        period = "" if is_null(text) else date_range(text, config.date_format)
        if isinstance(period, str):
            return NO_SIDE
        sides = {max((side for side, day in days.items() if date >= day), default=TRAIN) for date in period}
        return sides.pop() if len(sides) == 1 else NO_SIDE

    split = np.array([side_of(value) for value in column.values], dtype=np.int8)[column.codes]
    notes.append(
        f"split by {quoted(str(config.date_column))} ({', '.join(f'{WORDS[s]} from {d}' for s, d in days.items())}): {sides_text(split)}"
    )
    return split


def given_split(
    table: Table, names: Names, config: ManifestConfig, file: SplitFile | None, notes: list[str]
) -> tuple[np.ndarray | None, str]:
    """Return the split of the N rows of a table that the user gives, int8 [N], and the reason of the rows with `NO_SIDE`; None without a
    given split. Append lines to `notes`. `names`: [N], names of the photographs. `file`: content of data.split_file; None if not set.

    A side may have no rows; `check_training` refuses a split without training rows."""
    if file is not None:
        return file_split(file, names, table.columns, notes), NOT_IN_FILE
    if config.split_dates:
        if config.date_column is None:
            raise ConfigError("data.split_dates needs a column of dates, which the source does not have; set data.date_column")
        return date_split(table.columns[config.date_column], config, notes), UNDATED
    if config.split_column is not None:
        return split_from_column(table.columns[config.split_column], config.split_column), ""
    return None, ""


def check_training(split: np.ndarray | None, config: RecordsConfig) -> None:
    """Raise `ConfigError` if a given split, int8 [N], does not have training rows."""
    if split is not None and not (split == TRAIN).any():
        key, name = split_key(config), split_name(config)
        raise ConfigError(
            f"{name if name == key else f'{key}: {name}'} gives {sides_text(split) or 'no side'}, but no train rows, which training needs; "
            "to score a model on these rows, use linnaeus evaluate RUN --manifest FILE"
        )
