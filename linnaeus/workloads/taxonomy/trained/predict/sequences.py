"""`Sequences`: groups of photographs of the same burst or individual. Each group gets one answer.

The log-probabilities of the photographs of a sequence are averaged (`Scores.product`). They are not summed, because photographs of a burst
are nearly copies of each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from linnaeus.errors import ConfigError, quoted
from linnaeus.workloads.taxonomy.manifest.cleaning import null_values
from linnaeus.workloads.taxonomy.manifest.column import Column
from linnaeus.workloads.taxonomy.trained.photograph_list import Inputs

if TYPE_CHECKING:
    from linnaeus.workloads.taxonomy.trained.answers import Asked
    from linnaeus.workloads.taxonomy.trained.journal import Row
    from linnaeus.workloads.taxonomy.trained.reading_ahead import ReadBatch
    from linnaeus.workloads.taxonomy.trained.trained_classifier import TrainedClassifier


@dataclass(frozen=True)
class Sequences:
    """S sequences of photographs. The N photographs are sorted by sequence, so each sequence is a range of positions."""

    names: list[str]  # [S]: text of the column; "" for a photograph of its own
    starts: np.ndarray  # int64 [S + 1]: number of the first photograph, and N

    def __len__(self) -> int:
        return len(self.names)

    def photographs(self, sequence: int) -> range:
        """Return the positions of the photographs of sequence number `sequence`."""
        return range(int(self.starts[sequence]), int(self.starts[sequence + 1]))

    @cached_property
    def number(self) -> np.ndarray:
        """Return the number of the sequence of each photograph, int64 [N]."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    def ends(self, size: int) -> list[int]:
        """Divide the sequences into batches of at least `size` photographs (the last batch may be smaller). Return the number of sequences
        before the end of each batch."""
        found, last = [], 0
        while last < len(self):
            last = int(np.searchsorted(self.starts, self.starts[last] + size, side="left"))
            last = min(last, len(self))
            found.append(last)
        return found


def in_sequences(inputs: Inputs, name: str) -> tuple[Inputs, Sequences]:
    """Sort photographs by sequence. Return the sorted photographs and the sequences, which are in the order of their first photographs.

    `name`: column of the manifest; rows with the same value are a sequence. A row whose cell is null (empty, or a word such as NA) is a
    sequence of its own, with the name "". Raise `ConfigError` if the manifest does not have the column."""
    if name not in inputs.columns:
        raise ConfigError(f"--sequence: the manifest has no column {quoted(name)}")
    column = inputs.columns[name]
    empty = null_values(column.values)[column.codes]
    cells = np.where(empty, "", column.text())
    keys = np.unique(cells, return_inverse=True)[1].astype(np.int64)
    keys[empty] = keys.max(initial=-1) + 1 + np.arange(int(empty.sum()))
    _, first, keys = np.unique(keys, return_index=True, return_inverse=True)
    place = np.argsort(np.argsort(first))[keys]  # rank of the sequence by its first photograph
    order = np.argsort(place, kind="stable")
    starts = np.append(np.flatnonzero(np.diff(place[order], prepend=-1)), len(order))
    names = cells[order][starts[:-1]].tolist()
    return _reordered(inputs, order), Sequences(names, starts)


def _reordered(inputs: Inputs, order: np.ndarray) -> Inputs:
    """Return the photographs in the order of the positions `order`, int64 [N]."""
    columns = {name: Column(column.codes[order], column.values) for name, column in inputs.columns.items()}
    names = [inputs.names[i] for i in order.tolist()]
    return replace(inputs, names=names, files=inputs.files.take(order), metadata=inputs.metadata.take(order), columns=columns)


def answer_together(model: TrainedClassifier, batch: ReadBatch, asked: Asked, sequences: Sequences) -> list[Row]:
    """Return a row for each sequence of a batch of whole sequences: the prediction, or `error` if none of its photographs can be read.

    A row also has `sequence`, the paths `photographs`, and, if some photographs cannot be read, `unreadable`, path -> reason."""
    number = sequences.number[batch.first : batch.first + len(batch)]
    readable, group = np.unique(number[batch.good], return_inverse=True)
    names = [batch.inputs.names[sequences.starts[s]] for s in readable]
    made = model.predict_together(batch.images, batch.metadata, group, names, asked) if batch.good else []
    answers = dict(zip(readable.tolist(), made, strict=True))
    rows = []
    for s in range(int(number[0]), int(number[-1]) + 1):
        own = sequences.photographs(s)
        paths, errors = ([values[i - batch.first] for i in own] for values in (batch.names, batch.errors))
        unreadable = {path: error for path, error in zip(paths, errors, strict=True) if error is not None}
        answer: Row = answers[s].plain() if s in answers else {"photograph": paths[0], "error": errors[0]}
        rows.append(answer | {"sequence": sequences.names[s], "photographs": paths} | ({"unreadable": unreadable} if unreadable else {}))
    return rows


def each_photograph(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield a row for each photograph: from the row of a sequence, one row per photograph with the answer of the sequence; other rows
    unchanged.

    For a photograph that cannot be read, yield a row with the reason in `error`."""
    for row in rows:
        for path in row.get("photographs", [row["photograph"]]):
            error = row.get("unreadable", {}).get(path)
            yield {**row, "photograph": path} if error is None else {"photograph": path, "error": error}
