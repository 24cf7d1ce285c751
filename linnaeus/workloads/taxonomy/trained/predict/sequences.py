"""`Sequences`: photographs that show the same burst or individual, which get one answer.

The evidence of the photographs is multiplied: their log-probabilities are averaged (`Scores.product`). The mean, and not the sum, since
photographs of a burst are nearly copies of each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from linnaeus.errors import ConfigError, quoted
from linnaeus.workloads.taxonomy.manifest.column import Column
from linnaeus.workloads.taxonomy.trained.photograph_list import Inputs

if TYPE_CHECKING:
    from linnaeus.workloads.taxonomy.trained.answers import Asked
    from linnaeus.workloads.taxonomy.trained.journal import Row
    from linnaeus.workloads.taxonomy.trained.reading_ahead import ReadBatch
    from linnaeus.workloads.taxonomy.trained.trained_classifier import TrainedClassifier


@dataclass(frozen=True)
class Sequences:
    """S sequences of N photographs, which are in the order of the sequences."""

    names: list[str]  # [S]: text of the column; "" for a photograph of its own
    starts: np.ndarray  # int64 [S + 1]: number of the first photograph, and N

    def __len__(self) -> int:
        return len(self.names)

    def photographs(self, sequence: int) -> range:
        """Return the numbers of the photographs of a sequence."""
        return range(int(self.starts[sequence]), int(self.starts[sequence + 1]))

    @cached_property
    def number(self) -> np.ndarray:
        """Return the sequence of each photograph, int64 [N]."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    def ends(self, size: int) -> list[int]:
        """Return the number of sequences before the end of each batch of whole sequences.

        Every batch but the last has at least `size` photographs."""
        found, last = [], 0
        while last < len(self):
            last = int(np.searchsorted(self.starts, self.starts[last] + size, side="left"))
            last = min(last, len(self))
            found.append(last)
        return found


def in_sequences(inputs: Inputs, name: str) -> tuple[Inputs, Sequences]:
    """Return the photographs in the order of their sequences, and the sequences, in the order of their first photographs.

    `name`: column of the manifest. Rows with an empty cell are sequences of their own. Raise `ConfigError` if there is no such column."""
    if name not in inputs.columns:
        raise ConfigError(f"--sequence: the manifest has no column {quoted(name)}")
    cells = inputs.columns[name].text()
    empty = cells == ""
    keys = np.unique(cells, return_inverse=True)[1].astype(np.int64)
    keys[empty] = keys.max(initial=-1) + 1 + np.arange(int(empty.sum()))
    _, first, keys = np.unique(keys, return_index=True, return_inverse=True)
    place = np.argsort(np.argsort(first))[keys]  # rank of the sequence by its first photograph
    order = np.argsort(place, kind="stable")
    starts = np.append(np.flatnonzero(np.diff(place[order], prepend=-1)), len(order))
    names = cells[order][starts[:-1]].tolist()
    return _reordered(inputs, order), Sequences(names, starts)


def _reordered(inputs: Inputs, order: np.ndarray) -> Inputs:
    """Return the photographs in another order, int64 [N]."""
    columns = {name: Column(column.codes[order], column.values) for name, column in inputs.columns.items()}
    names = [inputs.names[i] for i in order.tolist()]
    return replace(inputs, names=names, files=inputs.files.take(order), metadata=inputs.metadata.take(order), columns=columns)


def answer_together(model: TrainedClassifier, batch: ReadBatch, asked: Asked, sequences: Sequences) -> list[Row]:
    """Return a row for each sequence of a batch of whole sequences: `sequence`, the paths `photographs`, and the prediction, or the reason
    for which none of its photographs can be read. Other reasons are in `unreadable`, by path."""
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
    """Yield a row for each photograph of rows of sequences, with the answer of its sequence; other rows as they are."""
    for row in rows:
        for path in row.get("photographs", [row["photograph"]]):
            error = row.get("unreadable", {}).get(path)
            yield {**row, "photograph": path} if error is None else {"photograph": path, "error": error}
