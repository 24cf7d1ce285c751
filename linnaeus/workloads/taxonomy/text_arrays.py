"""Arrays of strings, each with its own length (numpy's `StringDType`).

They must be sorted with the stable sort. numpy's default, quicksort, falls back to heapsort on unfavourable orders, which it does not have
for this type: the process ends with a segmentation fault (numpy 2.4.6, 300,000 file names with ascending numbers). `np.unique` without
`return_index`, `np.isin` and `np.sort` use the default.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from linnaeus.files import to_utf8
from linnaeus.workloads.taxonomy.text_lines import BLOCK, TextLines

Names = np.ndarray | TextLines  # texts by number


def strings(values: Sequence[str]) -> np.ndarray:
    """Return an array of strings [N]. Unlike `dtype=str`, one long string does not widen the others."""
    return np.array(values.tolist() if isinstance(values, TextLines) else values, dtype=np.dtypes.StringDType())


def unique_strings(values: Names) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted distinct strings [U] and the number of each value [N] among them, int64 [N]."""
    array = values if isinstance(values, np.ndarray) else strings(values)
    found, _, number = np.unique(array, return_index=True, return_inverse=True)
    return found, number


def positions(values: Names, wanted: Collection[str]) -> list[int]:
    """Return the positions of the strings [N] that are among `wanted`, in order."""
    return [i for i, value in enumerate(values) if value in wanted] if wanted else []


def joined(names: Names) -> Iterator[bytes]:
    """Yield `to_utf8("\\0".join(names))` in blocks."""
    if isinstance(names, TextLines):
        yield from names.joined()
        return
    for first in range(0, len(names), BLOCK):
        text = "\0".join(names[first : first + BLOCK].tolist())
        yield to_utf8(text if first == 0 else f"\0{text}")


def digests(texts: Iterable[str]) -> np.ndarray:
    """Return the BLAKE2b hash, of 8 bytes, of each of N texts, uint64 [N]."""
    found = bytearray()
    for text in texts:
        found += hashlib.blake2b(to_utf8(text), digest_size=8).digest()
    return np.frombuffer(found, "<u8").astype(np.uint64)


def distinct(values: np.ndarray) -> np.ndarray:
    """Return the sorted distinct integers of an array [N]. `np.unique` takes ten times as long for millions that are distinct."""
    ordered = np.sort(values)
    return ordered[np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(ordered)])]
