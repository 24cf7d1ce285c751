"""Make, number and hash large arrays of strings of variable length (numpy's `StringDType`).

Sort such an array only with kind="stable". numpy's default, quicksort, falls back to heapsort for unfavourable orders, and heapsort is not
implemented for this type: the process ends with a segmentation fault (numpy 2.4.6, 300,000 file names with ascending numbers). `np.unique`
without `return_index`, `np.isin` and `np.sort` use the default."""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from linnaeus.files import to_utf8
from linnaeus.workloads.taxonomy.arrays.text_lines import BLOCK, TextLines

Names = np.ndarray | TextLines  # sequence of texts


def strings(values: Sequence[str] | np.ndarray) -> np.ndarray:
    """Return an array of strings [N], in which one long string does not make the others longer, unlike with `dtype=str`."""
    if not isinstance(values, TextLines):
        return np.array(values, dtype=np.dtypes.StringDType())
    found = np.empty(len(values), dtype=np.dtypes.StringDType())
    for first in range(0, len(values), BLOCK):
        found[first : first + BLOCK] = values[first : first + BLOCK].tolist()
    return found


def unique_strings(values: Names) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted distinct strings, [U], and for each of the N values its index among the distinct strings, int64 [N]."""
    array = values if isinstance(values, np.ndarray) else strings(values)
    found, _, number = np.unique(array, return_index=True, return_inverse=True)
    return found, number


def numbered(texts: TextLines) -> tuple[np.ndarray, TextLines]:
    """Return for each of N texts its index among the distinct texts, int32 [N], and the U distinct texts in the order of their first
    occurrence."""
    keys = digests(texts)
    ordered = np.sort(keys)
    if (ordered[1:] != ordered[:-1]).all():
        return np.arange(len(texts), dtype=np.int32), texts
    _, first, key = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty(len(order), dtype=np.int32)
    number[order] = np.arange(len(order))
    codes, found = number[key], texts[first[order]]
    if all(text == same for text, same in zip(texts, found[codes], strict=True)):
        return codes, found
    places: dict[str, int] = {}  # slow path: two different texts have the same hash
    codes = np.fromiter((places.setdefault(text, len(places)) for text in texts), dtype=np.int32, count=len(texts))
    return codes, TextLines.of(places)


def first_places(names: Names) -> np.ndarray:
    """Return for each of N names the position at which it occurs first, int64 [N]."""
    if isinstance(names, TextLines):
        number, texts = numbered(names)
        first = np.empty(len(texts), dtype=np.int64)
        first[number[::-1]] = np.arange(len(number))[::-1]  # the last value that is assigned stays
    else:
        _, first, number = np.unique(names, return_index=True, return_inverse=True)
    return first[number]


def positions(values: Names, wanted: Collection[str]) -> list[int]:
    """Return the positions in `values` of the strings that are in `wanted`, in ascending order."""
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
    return np.frombuffer(found, "<u8").astype(np.uint64, copy=False)


def distinct(values: np.ndarray) -> np.ndarray:
    """Return the sorted distinct integers in an array. `np.unique` takes ten times as long for millions of distinct values."""
    ordered = np.sort(values)
    return ordered[np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(ordered)])]
