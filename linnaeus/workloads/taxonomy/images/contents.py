"""Hash the contents of photographs at the start of a run, to find photographs that were replaced, and validation photographs that equal a
training photograph.

At most `MOST_FILES` photographs with `MOST_BYTES` in all are read, which takes a few seconds from a local disk. If the data are larger, the
photographs to read are chosen by their size in bytes: equal photographs are then chosen together, and the choice is the same at every
start. The other photographs are compared by size only. Of a million photographs of 100 kB, 1 % is read.
"""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from linnaeus.reporting.terminal.preparation_progress import PreparationProgress
from linnaeus.workloads.taxonomy.arrays.text_arrays import Names, strings
from linnaeus.workloads.taxonomy.images.image_files import FINAL_ERRORS, THREADS, ImageFiles
from linnaeus.workloads.taxonomy.images.integrity import NotAnImage
from linnaeus.workloads.taxonomy.observations import TRAIN, VALIDATION

MOST_BYTES = 1 << 30
MOST_FILES = 50_000  # on a network file system a file takes milliseconds
_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: multiplication by it orders sizes as if at random
BLOCK = 64  # photographs per task of a thread
NOT_READ = 0  # in place of a hash
WIDE = 16  # bytes of `wide_hash`


def content_hashes(files: ImageFiles, sizes: np.ndarray) -> np.ndarray:
    """Return a hash of the content of each of N files, uint64 [N]; `NOT_READ` for a file that cannot be opened or is beyond the limits
    `MOST_FILES` and `MOST_BYTES`.

    `sizes`: int64 [N], in bytes. Raise `OSError` for an error that may be temporary and remains after three attempts."""
    _, first, row = np.unique(strings(files.names), return_index=True, return_inverse=True)
    own_sizes = sizes[first]
    order = np.argsort(own_sizes.astype(np.uint64) * _ODD, kind="stable")
    chosen = order[:MOST_FILES]
    chosen = chosen[np.cumsum(own_sizes[chosen]) <= MOST_BYTES]
    hashes = np.full(len(first), NOT_READ, dtype=np.uint64)
    blocks = [first[chosen[i : i + BLOCK]].tolist() for i in range(0, len(chosen), BLOCK)]
    progress = PreparationProgress("comparing photographs", len(blocks), f"{len(chosen):,}")
    with progress, ThreadPoolExecutor(THREADS) as pool:
        found = pool.map(lambda block: [_hash_of_row(files, row) for row in block], blocks)
        hashes[chosen] = [value for block in progress.each(found) for value in block]
    return hashes[row]


def content_hash(data: bytes) -> int:
    """Return the hash of the content of a file: 8 bytes of BLAKE2b as an integer from 0 to 2^64 - 1."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def wide_hash(data: bytes) -> bytes:
    """Return 16 bytes of BLAKE2b of the content of a file. Of a billion
    different contents, two have the same with a probability of 2e-21."""
    return hashlib.blake2b(data, digest_size=WIDE).digest()


def _hash_of_row(files: ImageFiles, row: int) -> int:
    try:
        data = files.read(row)
    except NotAnImage:
        return NOT_READ
    except OSError as error:
        if error.errno not in FINAL_ERRORS:
            raise
        return NOT_READ
    return content_hash(data)


def content_notes(ids: Names, hashes: np.ndarray, split: np.ndarray) -> list[str]:
    """Return lines of text about validation photographs that equal a training photograph, and about photographs that were not compared.

    `ids`: [N], names of the photographs. `hashes`: result of `content_hashes`. `split`: int8 [N]."""
    notes = []
    read = hashes != NOT_READ
    training, validation = (np.flatnonzero(read & (split == side)) for side in (TRAIN, VALIDATION))
    known = np.sort(hashes[training])
    by_hash = validation[np.argsort(hashes[validation])]  # sorted numbers are found in sorted numbers many times faster
    own = hashes[by_hash]
    copies = np.sort(by_hash[np.searchsorted(known, own, "left") < np.searchsorted(known, own, "right")])
    if len(copies):
        original = training[hashes[training] == hashes[copies[0]]][0]
        notes.append(
            f"{len(copies)} of {int((split == VALIDATION).sum())} validation photographs with the same bytes as a training photograph "
            f"({ids[copies[0]]} and {ids[original]}); remove such copies, or give both the same value in data.group_column"
        )
    if not read.all():
        notes.append(
            f"photographs not read at the start: {int((~read).sum())} of {len(ids)}; "
            "copies of them in validation, and later replacements of the same size, are not noticed"
        )
    return notes
