"""Measure the rate of reading a store that is four times as large as the memory of the reading process.

    python -m benchmarks.larger_than_memory             15 rounds; needs root, control groups (v1 or v2), and 5 GB of disk
    python -m benchmarks.larger_than_memory --quick     a short trial with a small store and without a limit; no verdict

The store contains raw pixels of photographs with a short side of 256. A reader is a separate process that makes training batches on one
core. A control group limits its memory to a quarter of the size of the store; its own memory and the photographs that it has mapped both
count. Before it starts, the photographs are removed from the page cache. The variant "in memory" has the same order without a limit, and
the photographs are in the page cache. Bar: `data.order=blocks` reads at 70 % of its rate in memory or more.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.data import BATCH, make_photographs, ours, prepare
from benchmarks.interleaved import Bar, arguments, conclude, measure, report
from linnaeus.workloads.taxonomy.arrays.text_arrays import digests
from linnaeus.workloads.taxonomy.store.store_layout import read_lines, read_record, write_lines, write_record

PHOTOGRAPHS, COPIES = 512, 32  # of 262 kB: 4.3 GB
READ = 4096  # photographs of a round
IN_MEMORY, BLOCKS, SHUFFLE = "blocks, in memory", "blocks, a quarter of the memory", "shuffle, a quarter of the memory"
ORDERS = {"blocks": ["data.order=blocks", "data.window_blocks=16"], "shuffle": ["data.order=shuffle"]}
GROUPS = Path("/sys/fs/cgroup")


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="1 round of a small store, without a limit")
    parser.add_argument("--read", nargs=3, metavar=("STORE", "ORDER", "COUNT"), help="read photographs, print the seconds for each")
    options = parser.parse_args()
    if options.read is not None:
        print(read(*options.read))
        return 0
    rounds, photographs, copies, count = (1, BATCH, 2, BATCH) if options.quick else (options.rounds, PHOTOGRAPHS, COPIES, READ)
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        store = enlarge(prepare(make_photographs(root / "photographs", photographs), root / "store", "raw"), copies)
        size = sum(path.stat().st_size for path in (store / "parts").iterdir())
        group = None if options.quick else limited_group(size // 4)
        try:
            variants = {
                IN_MEMORY: reader(store, "blocks", count, None, warm=True),
                BLOCKS: reader(store, "blocks", count, group),
                SHUFFLE: reader(store, "shuffle", count, group),
            }
            seconds = measure(variants, rounds)
        finally:
            if group is not None:
                group.rmdir()
    notes = {name: f"{1 / np.median(times):,.0f} photographs/s" for name, times in seconds.items()}
    title = f"a store of {size / 1e9:.1f} GB, one core, wall seconds of a photograph, {rounds} rounds"
    return conclude([report(title, seconds, IN_MEMORY, [Bar(BLOCKS, IN_MEMORY, 1 / 0.7)], (1000, "ms"), notes)], options.json)


def enlarge(store: Path, copies: int) -> Path:
    """Repeat the records of a store with one part `copies` times, each copy with its own file of photographs.

    Return the path of the store."""
    place = np.load(store / "place.npy")
    for path in store.glob("*.npy"):
        np.save(path, np.concatenate([np.load(path)] * copies))
    number = np.repeat(np.arange(copies), len(place))
    np.save(store / "place.npy", np.column_stack([number, np.tile(place[:, 1:], (copies, 1))]))
    names = [f"{copy}/{name}" for copy in range(copies) for name in read_lines(store / "names.txt")]
    write_lines(store / "names.txt", names)
    np.save(store / "digests.npy", digests(names))
    for copy in range(1, copies):
        shutil.copyfile(store / "parts/00000.bin", store / f"parts/{copy:05d}.bin")
    write_record(store, read_record(store))
    return store


def limited_group(size: int) -> Path:
    """Create a control group whose processes have `size` bytes of memory. Raise `SystemExit` with one line if this is not possible."""
    first = (GROUPS / "cgroup.controllers").exists()
    group = (GROUPS if first else GROUPS / "memory") / f"linnaeus-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.max" if first else "memory.limit_in_bytes")).write_text(str(size))
    except OSError as error:
        raise SystemExit(f"no control group of memory can be made here ({error}); run as root, or with --quick") from None
    return group


def reader(store: Path, order: str, count: int, group: Path | None, warm: bool = False) -> Callable[[int], float]:
    """Return a function that reads photographs in a process of the control group `group` and returns the seconds per photograph.

    `warm=True`: the photographs are read into the page cache first; otherwise they are removed from it."""
    command = [sys.executable, "-m", "benchmarks.larger_than_memory", "--read", str(store), order, str(count)]
    join = [] if group is None else ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]

    def one_round(_: int) -> float:
        for path in (store / "parts").iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                while warm and file.read(1 << 24):
                    pass
        return float(subprocess.run([*join, *command], check=True, capture_output=True, text=True).stdout.split()[-1])

    return one_round


def read(store: str, order: str, count: str) -> float:
    """Read the first `count` photographs of an epoch. Return the seconds per photograph."""
    import torch

    from linnaeus.workloads.taxonomy.images import photographs

    torch.set_num_threads(1)
    photographs.CACHE_LIMIT = 0
    epoch = ours(["data=store", f"data.path={store}", *ORDERS[order]], 0, "random")
    start, done = time.perf_counter(), 0
    for batch in epoch():
        done += batch
        if done >= int(count):
            break
    return (time.perf_counter() - start) / done


if __name__ == "__main__":
    sys.exit(main())
