"""Link the observations of a Camera Trap Data Package to its photographs.

A media-level observation has the id of a photograph. An event-level observation has a deployment (a camera at a place for some time) and a
time window, and belongs to every photograph of the deployment within this window; windows may overlap. The photographs are sorted by
deployment and time, so that the photographs of an observation are a slice, `start` to `stop`, of the sorted list.
"""

import datetime
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from linnaeus.workloads.taxonomy.manifest.records import column_of
from linnaeus.workloads.taxonomy.manifest.tables.column import Column
from linnaeus.workloads.taxonomy.manifest.tables.table import Table

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Links(NamedTuple):
    """Photographs of each of K observations: observation k has the photographs `order[start[k]:stop[k]]`."""

    order: np.ndarray  # int64 [M]: numbers of the photographs, sorted by deployment and time
    start: np.ndarray  # int64 [K]
    stop: np.ndarray  # int64 [K]: equal to `start` if the observation belongs to no photograph
    zoneless: int  # number of times that cannot be compared, because they have no time zone and others have one

    def labels(self, rows: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return for each photograph the number of its different labels, its label, and its first observation, three arrays int64 [M].

        The label and the observation are valid only where the number of labels is 1. `rows`: bool [K], True for the observations to use.
        `label`: int64 [K], label of each observation. Memory grows with the number of observations and photographs, not with the number of
        their pairs."""
        size = len(self.order)
        used = np.flatnonzero(rows & (self.stop > self.start))
        used = used[np.lexsort((used, self.start[used], label[used]))]
        offset = label[used] * (size + 1)  # separates the observations of a label from those of the next
        start, stop = self.start[used] + offset, np.maximum.accumulate(self.stop[used] + offset)
        first = np.flatnonzero(np.concatenate([[True], start[1:] >= stop[:-1]])) if len(used) else used  # of overlapping windows of a label
        last = np.append(first[1:], len(used))[: len(first)] - 1
        start, stop, first = start[first] - offset[first], stop[last] - offset[last], used[first]
        counts = []
        for weight in (np.ones_like(first), label[first], first):  # with one label, the sum over the labels of a photograph is the label
            change = np.zeros(size + 1, dtype=np.int64)
            np.add.at(change, start, weight)
            np.subtract.at(change, stop, weight)
            total = np.empty(size, dtype=np.int64)
            total[self.order] = np.cumsum(change[:-1])
            counts.append(total)
        return counts[0], counts[1], counts[2]


def link(media: Table, observations: Table, event_level: np.ndarray) -> Links:
    """Return the photographs of each of K observations. `event_level`: bool [K], True for event-level observations.

    Both tables have the columns mediaID and deploymentID; `media` also has timestamp, `observations` eventStart and eventEnd."""
    columns = [media.columns["timestamp"], observations.columns["eventStart"], observations.columns["eventEnd"]]
    read = [seconds(column) for column in columns]
    mixed = len({bool(flag) for time, zoned in read for flag in np.unique(zoned[~np.isnan(time)])}) > 1
    times = [np.where(zoned | (not mixed), time, np.nan) for time, zoned in read]
    zoneless = sum(int((np.isnan(time) & ~np.isnan(given)).sum()) for time, (given, _) in zip(times, read, strict=True))
    distinct = np.unique(np.concatenate(times))
    distinct = distinct[~np.isnan(distinct)]
    number: dict[str, int] = {value: i for i, value in enumerate(dict.fromkeys(media.columns["deploymentID"].values)) if value}
    camera, seen = (numbers(table.columns["deploymentID"], number) for table in (media, observations))
    taken, begin, end = (np.searchsorted(distinct, time) for time in times)
    key = np.where((camera < 0) | np.isnan(times[0]), -1, camera * len(distinct) + taken)
    order = np.argsort(key, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    timed = event_level & (seen >= 0) & ~np.isnan(times[1]) & ~np.isnan(times[2])
    start = np.where(timed, np.searchsorted(key[order], seen * len(distinct) + begin, side="left"), 0)
    stop = np.where(timed, np.searchsorted(key[order], seen * len(distinct) + end, side="right"), 0)
    row = row_of(observations.columns["mediaID"], media.columns["mediaID"])
    named = ~event_level & (row >= 0)
    start[named] = place[row[named]]
    stop[named] = start[named] + 1
    return Links(order, start, np.maximum(start, stop), zoneless)


def seconds(column: Column) -> tuple[np.ndarray, np.ndarray]:
    """Convert times such as 2020-05-30T04:57:37+02:00 to seconds since 1970, float64 [N]. A time without a zone is read as UTC.

    Also return bool [N], False for a time without a zone. A cell that is not a time gives NaN and True."""

    def parse(text: str) -> tuple[float, bool]:
        try:
            time = datetime.datetime.fromisoformat(text)
            zoned = time if time.tzinfo else time.replace(tzinfo=datetime.UTC)
            return (zoned - _EPOCH).total_seconds(), zoned is time
        except (ValueError, OverflowError):
            return np.nan, True

    parsed = np.array([parse(value) for value in column.values], dtype=np.float64).reshape(-1, 2)[column.codes]
    return parsed[:, 0], parsed[:, 1] > 0


def are(column: Column, word: str) -> np.ndarray:
    """Return bool [N]: True where the cell is `word`, in any case of letters. `word` is in lower case."""
    return np.array([value.lower() == word for value in column.values], dtype=bool)[column.codes]


def numbers(column: Column, number: dict[str, int]) -> np.ndarray:
    """Return `number[cell]` for each cell, int64 [N]; -1 for a cell that is not a key of `number`."""
    return np.array([number.get(value, -1) for value in column.values], dtype=np.int64)[column.codes]


def row_of(column: Column, ids: Column) -> np.ndarray:
    """Return, for each cell of `column`, the last row of `ids` with the same value, int64 [N]; -1 if there is no such row or the cell is
    empty."""
    number = {value: i for i, value in enumerate(dict.fromkeys(ids.values)) if value}
    row = np.full(len(number) + 2, -1, dtype=np.int64)
    row[numbers(ids, number)] = np.arange(len(ids.codes))
    row[-1] = -1
    return row[numbers(column, number)]


def repeated(ids: Column) -> np.ndarray:
    """Return bool [N]: True where another row has the same id. Empty ids do not count as the same."""
    number = {value: i for i, value in enumerate(dict.fromkeys(ids.values)) if value}
    code = numbers(ids, number)
    return (np.bincount(code + 1, minlength=1) > 1)[code + 1] & (code >= 0)


def mapped(column: Column, change: Callable[[str], str], rows: np.ndarray | None = None) -> Column:
    """Return the column of `change(cell)`. `rows`: int64 [M], the rows to return, an empty cell for -1; None: all rows."""
    values = column_of([*map(change, column.values), ""])
    codes = column.codes if rows is None else np.append(column.codes, -1)[rows]
    return Column(values.codes[codes], values.values)
