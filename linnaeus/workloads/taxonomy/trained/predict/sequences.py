"""`Sequences`: groups of photographs of the same burst or individual. Each group gets one answer.

The log-probabilities of the photographs of a sequence are averaged, because photographs of a burst are nearly copies of each other, or on
request summed (`TrainedClassifier.predict_together`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from linnaeus.errors import ConfigError, quoted
from linnaeus.workloads.taxonomy.manifest.tables.cleaning import null_values
from linnaeus.workloads.taxonomy.manifest.tables.column import Column
from linnaeus.workloads.taxonomy.trained.photographs.photograph_list import Inputs

if TYPE_CHECKING:
    from linnaeus.workloads.taxonomy.trained.batches.journal import Row
    from linnaeus.workloads.taxonomy.trained.batches.reading_ahead import ReadBatch
    from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import Together, TrainedClassifier
    from linnaeus.workloads.taxonomy.trained.probabilities.answers import Asked


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


class SequenceBatch:
    """Batch of whole sequences whose photographs are added in parts, so that few photographs are in memory at once.

    `first`, `end`: numbers of the first sequence, and of the last one + 1."""

    def __init__(self, sequences: Sequences, first: int, end: int) -> None:
        self.sequences, self.first, self.end = sequences, first, end
        self.readable: list[int] = []  # numbers of the sequences that have a photograph that could be read, ascending
        self.errors: dict[int, str] = {}  # position of a photograph that cannot be read -> reason
        self.together: Together | None = None

    def add(self, model: TrainedClassifier, part: ReadBatch) -> None:
        """Add the scores of the next photographs. Parts are added in their order."""
        self.errors |= {part.first + i: error for i, error in enumerate(part.errors) if error is not None}
        if not part.good:
            return
        number = self.sequences.number[part.first : part.first + len(part)][part.good]
        self.readable = list(dict.fromkeys([*self.readable, *number.tolist()]))
        group = np.searchsorted(self.readable, number)
        self.together = model.together(part.images, part.metadata, group, self.together)

    def answer(self, model: TrainedClassifier, names: Sequence[str], asked: Asked) -> list[Row]:
        """Return a row for each sequence: the prediction, or `error` if none of its photographs can be read. `names`: of all photographs.

        A row also has `sequence`, the paths `photographs`, and, if some photographs cannot be read, `unreadable`, path -> reason."""
        firsts = [names[self.sequences.starts[s]] for s in self.readable]
        made = [] if self.together is None else model.predict_together(self.together, firsts, asked)
        answers, rows = dict(zip(self.readable, made, strict=True)), []
        for s in range(self.first, self.end):
            own = self.sequences.photographs(s)
            unreadable = {names[i]: self.errors[i] for i in own if i in self.errors}
            answer: Row = answers[s].plain() if s in answers else {"photograph": names[own[0]], "error": self.errors[own[0]]}
            answer |= {"sequence": self.sequences.names[s], "photographs": [names[i] for i in own]}
            rows.append(answer | ({"unreadable": unreadable} if unreadable else {}))
        return rows


def answer_together(
    model: TrainedClassifier, inputs: Inputs, sequences: Sequences, done: int, size: int, threads: int, asked: Asked
) -> Iterator[list[Row]]:
    """Yield the rows of each batch of whole sequences (`Sequences.ends`), as `SequenceBatch.answer` returns. Skip `done` sequences.

    At most `size` photographs are scored at once, also of a longer sequence."""
    from linnaeus.workloads.taxonomy.trained.batches.reading_ahead import read_batches

    edges = [0, *sequences.ends(size)]
    parts: list[int] = []  # number of photographs before the end of each part
    for first, end in zip(sequences.starts[edges[:-1]].tolist(), sequences.starts[edges[1:]].tolist(), strict=True):
        parts += [*range(first + size, end, size), end]
    ranges = [(first, end) for first, end in pairwise(edges) if first >= done]
    read = read_batches(model, inputs, size, threads, "predicting", int(sequences.starts[done]), parts)
    for first, end in ranges:
        batch = SequenceBatch(sequences, first, end)
        for part in read:
            batch.add(model, part)
            if part.first + len(part) == sequences.starts[end]:
                break
        yield batch.answer(model, inputs.names, asked)


def each_photograph(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield a row for each photograph: from the row of a sequence, one row per photograph with the answer of the sequence; other rows
    unchanged.

    For a photograph that cannot be read, yield a row with the reason in `error`."""
    for row in rows:
        for path in row.get("photographs", [row["photograph"]]):
            error = row.get("unreadable", {}).get(path)
            yield {**row, "photograph": path} if error is None else {"photograph": path, "error": error}
