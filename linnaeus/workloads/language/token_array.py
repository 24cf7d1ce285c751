"""Read the tokens of one split (training or validation): from files that every process maps into its memory, or from an array in memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np


class Tokens(Protocol):
    """Tokens of one split, from which windows are cut. `source_sizes`: number of tokens of each source; () without named sources."""

    @property
    def size(self) -> int: ...

    @property
    def source_sizes(self) -> tuple[int, ...]: ...

    def read(self, index: np.ndarray) -> np.ndarray:
        """Return the tokens at the positions `index`, int64 in the shape of `index`."""


@dataclass(frozen=True)
class TokensInMemory:
    """Tokens of a text that are in memory only, not stored on disk."""

    tokens: np.ndarray
    source_sizes: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return len(self.tokens)

    def read(self, index: np.ndarray) -> np.ndarray:
        return self.tokens[index].astype(np.int64)


@dataclass(frozen=True)
class TokenFile:
    """A file of tokens: `size` integers of `dtype` after `offset` bytes of a header."""

    path: Path
    dtype: str  # numpy's name, such as "<u2"
    offset: int
    size: int

    def map(self) -> np.ndarray:
        """Return the tokens as a read-only, memory-mapped array [size]."""
        if not self.size:
            return np.zeros(0, self.dtype)
        return np.memmap(self.path, self.dtype, mode="r", offset=self.offset, shape=(self.size,)).view(np.ndarray)


@dataclass(frozen=True)
class TokenArray:
    """Tokens of several files, joined in the order of `files`. The files are opened at the first read. When the object is pickled, the
    paths are stored, not the data."""

    files: tuple[TokenFile, ...]
    source_sizes: tuple[int, ...] = ()  # tokens of each source, in the order of the array; () without named sources

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @cached_property
    def _mapped(self) -> list[np.ndarray]:
        return [file.map() for file in self.files]

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.cumsum([0] + [file.size for file in self.files[:-1]])

    @property
    def tokens(self) -> np.ndarray:
        """Return all tokens as a read-only array [size]. A single file is memory-mapped; several files are copied to memory."""
        return self._mapped[0] if len(self.files) == 1 else np.concatenate(self._mapped)

    def read(self, index: np.ndarray) -> np.ndarray:
        """Return the tokens at the positions `index`, int64 in the shape of `index`. Only the pages of the files that contain these tokens
        are read."""
        if len(self.files) == 1:
            return self._mapped[0][index].astype(np.int64)
        number = np.searchsorted(self._starts, index, side="right") - 1
        tokens = np.empty(index.shape, np.int64)
        for each in np.unique(number):
            own = number == each
            tokens[own] = self._mapped[each][index[own] - self._starts[each]]
        return tokens

    def __reduce__(self) -> tuple[type[TokenArray], tuple[tuple[TokenFile, ...], tuple[int, ...]]]:
        return TokenArray, (self.files, self.source_sizes)


COUNTED, STRETCHES = 2_000_000, 256  # tokens, and places over the whole split from which they are read


def token_counts(split: Tokens, vocabulary: int) -> np.ndarray:
    """Return the number of occurrences of each token in a split, int64 [vocabulary].

    If the split has more than `COUNTED` tokens, count only in `STRETCHES` evenly spaced stretches of equal length, about `COUNTED` tokens
    in all."""
    if split.size <= COUNTED:
        positions = np.arange(split.size)
    else:
        length = COUNTED // STRETCHES
        positions = (np.linspace(0, split.size - length, STRETCHES).astype(np.int64)[:, None] + np.arange(length)).ravel()
    return np.bincount(split.read(positions), minlength=vocabulary)
