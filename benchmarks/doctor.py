"""Measure time and memory of `linnaeus doctor` on photographs: the search for similar pairs among a million hashes, and the pass over the
files.

    python -m benchmarks.doctor                    about 2 minutes, one core
    python -m benchmarks.doctor --quick            a short trial; no verdict on the pass

The hashes are random, with 10,000 copies of which 1 to 8 bits differ, and ten series of 1,000 whose members differ from one hash in at
most 4 bits. All pairs that differ in at most 8 bits are searched, in a separate process. Bars: 60 seconds of CPU, 1 GB in all, every copy
found. The pass over photographs is compared with decoding them once as training does, at an image size of 224. They are the photographs of
`benchmarks.data`. Bar: 1.3 times the CPU time.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.interleaved import Bar, arguments, conclude, measure, report

HASHES, DISTANCE, COPIES, SERIES, LENGTH = 1_000_000, 8, 10_000, 10, 1_000
SECONDS, BYTES = 60, 1 << 30
PHOTOGRAPHS, SIZE, LARGEST = 512, 224, 1 << 28
PASS, DECODING = "pass of the doctor", "decoding once"


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="30,000 hashes, and 2 rounds with 32 photographs")
    options = parser.parse_args()
    hashes, rounds, count = (30_000, 2, 32) if options.quick else (HASHES, options.rounds, PHOTOGRAPHS)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        tables = [search_table(process.submit(search, hashes).result())]
    with tempfile.TemporaryDirectory() as folder:
        tables.append(compare(Path(folder), rounds, count))
    return conclude(tables, options.json)


def made_hashes(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (about `count` distinct random hashes, uint64; the pairs of a hash and its changed copy, uint64 [COPIES, 2])."""
    random = np.random.default_rng(0)

    def changed(hashes: np.ndarray, most: int) -> np.ndarray:
        """Return copies of `hashes` in which 1 to `most` bits differ."""
        order = random.random((len(hashes), 64)).argsort(axis=1)
        bits = order < random.integers(1, most + 1, (len(hashes), 1))
        return hashes ^ np.packbits(bits, axis=1).view(np.uint64)[:, 0]

    alone = random.integers(0, 2**64, count - COPIES - SERIES * LENGTH, dtype=np.uint64)
    copies = changed(alone[:COPIES], DISTANCE)
    series = changed(np.repeat(alone[-SERIES:], LENGTH), 4)
    return random.permutation(np.unique(np.concatenate([alone, copies, series]))), np.stack([alone[:COPIES], copies], axis=1)


def search(count: int) -> dict[str, Any]:
    """Search for similar pairs among `count` hashes.

    Return CPU seconds, memory of the process in bytes, and the numbers of pairs found and missed."""
    from linnaeus.workloads.taxonomy.doctor.near_duplicates import near_pairs

    hashes, planted = made_hashes(count)
    wanted = np.sort(planted, axis=1)
    wanted = np.unique(wanted[:, 0] ^ (wanted[:, 1] * np.uint64(3)))
    start = time.process_time()
    pairs, found = 0, []
    for first, second, _ in near_pairs(hashes, DISTANCE):
        pairs += len(first)
        both = np.sort(np.stack([hashes[first], hashes[second]], axis=1), axis=1)
        keys = both[:, 0] ^ (both[:, 1] * np.uint64(3))
        found.append(keys[np.isin(keys, wanted)])
    seconds = time.process_time() - start
    missed = len(wanted) - len(np.unique(np.concatenate(found)))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"hashes": len(hashes), "pairs": pairs, "seconds": seconds, "bytes": memory, "missed": missed}


def search_table(found: dict[str, Any]) -> dict[str, Any]:
    """Print the results of the search, and return them with their bars."""
    title = f"pairs of {found['hashes']:,} hashes within {DISTANCE} bits"
    print(
        f"{title}: {found['pairs']:,} in {found['seconds']:.1f} s of CPU, {found['bytes'] / 2**20:.0f} MiB, {found['missed']} copies missed"
    )
    limits = {"seconds": SECONDS, "bytes": BYTES, "missed": 0}
    bars = [{"variant": name, "at_most": most, "verdict": "held" if found[name] <= most else "MISSED"} for name, most in limits.items()]
    for bar in bars:
        print(f"  {bar['variant']}: bar {bar['at_most']:,}: {bar['verdict']}")
    return {"title": title, **found, "bars": bars}


def compare(folder: Path, rounds: int, count: int) -> dict[str, Any]:
    """Time the doctor's pass over `count` photographs and their decoding. Return the table with its bar.

    `folder`: where they are written."""
    import torch

    from benchmarks.data import make_photographs
    from linnaeus.workloads.taxonomy.doctor.pixels import Measurement
    from linnaeus.workloads.taxonomy.images.image_files import FolderFiles
    from linnaeus.workloads.taxonomy.images.photographs import DETAIL

    torch.set_num_threads(1)
    names = sorted(str(path.relative_to(folder)) for path in make_photographs(folder, count).rglob("*.jpg"))
    files, rows = FolderFiles(folder, names), np.arange(len(names))

    def examine() -> None:
        Measurement(files, LARGEST).measure(rows)

    def decode() -> None:
        for row in range(len(names)):
            files.decode(row, DETAIL * SIZE, LARGEST)

    def timed(action: Any) -> Any:
        def seconds(_: int) -> float:
            start = time.process_time()
            action()
            return (time.process_time() - start) / len(names)

        return seconds

    seconds = measure({PASS: timed(examine), DECODING: timed(decode)}, rounds)
    title = f"one core, CPU seconds of a photograph of 500 x 375 pixels, {rounds} rounds"
    return report(title, seconds, DECODING, [Bar(PASS, DECODING, 1.3)], (1000, "ms"), {})


if __name__ == "__main__":
    sys.exit(main())
