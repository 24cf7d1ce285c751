"""Find all pairs of 64-bit hashes that differ in at most a few bits, without comparing every pair.

The bits are divided into three bands (`BANDS`). Two hashes that differ in at most D bits differ, in at least one band, in at most a third
of D bits (pigeonhole principle: for D = 8, in at most 2 bits of one band). So only hashes that nearly agree in one band are compared: in a
million hashes, each hash with some 150 others. The work grows with the number of pairs that are similar in a band. The hashes passed in
must be distinct; the caller groups equal hashes.
"""

import itertools
from collections.abc import Iterator

import numpy as np

BANDS = ((0, 22), (22, 21), (43, 21))  # first bit and number of bits
LARGEST_DISTANCE = 12
CHUNK = 1 << 20  # pairs compared at once; about 30 bytes each

Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]


def near_pairs(hashes: np.ndarray, distance: int) -> Iterator[Pairs]:
    """Yield the pairs of distinct hashes, uint64 [U], that differ in at most `distance` bits, each pair once, in blocks.

    A block is (positions of the first hashes, positions of the second hashes, numbers of different bits): int64 [K], int64 [K], uint8 [K].
    Raise `ValueError` for a distance above `LARGEST_DISTANCE`."""
    if not 0 <= distance <= LARGEST_DISTANCE:
        raise ValueError(f"distance is {distance}; it must be from 0 to {LARGEST_DISTANCE}")
    shares = _shares(distance)
    for band, ((first, bits), share) in enumerate(zip(BANDS, shares, strict=True)):
        values = ((hashes >> np.uint64(first)) & np.uint64((1 << bits) - 1)).astype(np.int32)
        order = np.argsort(values, kind="stable")
        ordered = hashes[order]
        for left, right in _candidates(values[order], bits, share):
            different = ordered[left] ^ ordered[right]
            count = np.bitwise_count(different)
            near = np.flatnonzero(count <= distance)
            near = near[~_found_before(different[near], shares[:band])]
            if len(near):
                yield order[left[near]], order[right[near]], count[near]


def _shares(distance: int) -> list[int]:
    """Return, for each band, the largest number of different bits to search for; -1: the band is not searched.

    (Result + 1) summed over the bands is `distance` + 1. So if a pair differs in more bits than the result in every band, it differs in
    more than `distance` bits.
    """
    return [(distance + 1 + band) // len(BANDS) - 1 for band in range(len(BANDS))]


def _found_before(different: np.ndarray, shares: list[int]) -> np.ndarray:
    """Return bool [K], True for pairs that the search of an earlier band has found. `different`: uint64 [K], 1 for each bit that differs.
    `shares`: for each earlier band the largest number of different bits with which its search finds a pair, from `_shares`."""
    found = np.zeros(len(different), dtype=bool)
    for (first, bits), share in zip(BANDS, shares, strict=False):
        found |= np.bitwise_count(different & np.uint64(((1 << bits) - 1) << first)).astype(np.int64) <= share
    return found


def _candidates(values: np.ndarray, bits: int, share: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield, in blocks, the pairs of positions whose `values` differ in at most `share` bits. `values`: int32 [U], ascending, of `bits`
    bits each. A block is (positions, positions), int64 [K] each."""
    distinct, start = np.unique(values, return_index=True)
    end = np.append(start[1:], len(values))
    number = np.full(1 << bits, -1, dtype=np.int32)  # of each value among the distinct ones
    number[distinct] = np.arange(len(distinct), dtype=np.int32)
    numbers = np.arange(len(distinct), dtype=np.int32)
    if share >= 0:
        many = np.flatnonzero(end - start > 1)
        left = _ranges(start[many], end[many])
        yield from _products(left, left + 1, np.repeat(end[many], end[many] - start[many]))
    for mask in _masks(bits, share):
        other = number[distinct ^ mask]
        own = np.flatnonzero(other > numbers)
        other = other[own]
        size = end[own] - start[own]
        yield from _products(_ranges(start[own], end[own]), np.repeat(start[other], size), np.repeat(end[other], size))


def _masks(bits: int, share: int) -> Iterator[int]:
    """Yield the integers below 2^`bits` that have 1 to `share` bits set, in ascending order of the number of set bits."""
    for count in range(1, share + 1):
        for chosen in itertools.combinations(range(bits), count):
            yield sum(1 << bit for bit in chosen)


def _products(left: np.ndarray, start: np.ndarray, end: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield, in blocks of about `CHUNK` pairs, the pairs (`left[i]`, j) for all i and all j from `start[i]` to `end[i]` - 1. All arguments
    are int64 [L]."""
    sizes = end - start
    block = np.cumsum(sizes) // CHUNK
    cuts = [0, *(np.flatnonzero(np.diff(block)) + 1), len(left)]
    for a, b in itertools.pairwise(cuts):
        if b > a:
            yield np.repeat(left[a:b], sizes[a:b]), _ranges(start[a:b], end[a:b])


def _ranges(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return the numbers from `start[i]` to `end[i]` - 1 for each i, one range after the other, int64."""
    sizes = end - start
    before = np.cumsum(sizes) - sizes
    return np.repeat(start - before, sizes) + np.arange(int(sizes.sum()))
