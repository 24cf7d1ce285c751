"""Read the tokens of one split, in one or several files that every process maps into its memory, or of a text in memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np


class Tokens(Protocol):
    """Tokens that windows are cut from. `source_sizes`: tokens of each source; () without named sources."""

    @property
    def size(self) -> int: ...

    @property
    def source_sizes(self) -> tuple[int, ...]: ...

    def read(self, index: np.ndarray) -> np.ndarray:
        """Return the tokens at `index`, int64 of its shape."""


@dataclass(frozen=True)
class TokensInMemory:
    """Tokens of a text that is not stored."""

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
        """Return the tokens [size], read-only and memory-mapped."""
        if not self.size:
            return np.zeros(0, self.dtype)
        return np.memmap(self.path, self.dtype, mode="r", offset=self.offset, shape=(self.size,)).view(np.ndarray)


@dataclass(frozen=True)
class TokenArray:
    """Tokens of `files`, one after the other. The files are opened at the first read; pickling keeps the paths, not the data."""

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
        """The tokens [size], read-only. One file is memory-mapped; several are copied to memory."""
        return self._mapped[0] if len(self.files) == 1 else np.concatenate(self._mapped)

    def read(self, index: np.ndarray) -> np.ndarray:
        """Return the tokens at `index`, int64 of its shape. Only the pages of the files with these tokens are read."""
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
