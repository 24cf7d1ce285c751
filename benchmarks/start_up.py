"""Measure the time from `python main.py` to the end of the first optimizer step, compared with a bare script that imports torch.

    python -m benchmarks.start_up                     about 2 minutes
    python -m benchmarks.start_up --records 3000000   from a store with that many records, and from one with few; 5 minutes, 500 MB of disk

Processes are started one after the other, the variants interleaved; the time is wall time from just before the start of the process to the
end of the first update, with a warm file cache. `linnaeus` is `python main.py trainer.num_workers=0` on the embedded data, with all
outputs, in a new directory. The bare script makes one step of the same network with `torch.optim.AdamW` on random images and does nothing
else. Bar: at most 0.80 of the bare script.

With `--records`, the time from a store with many records is compared with that from a store with 3,000, whose tree is the same. All names
differ; 1,024 photographs are shared by the records. Bar: 3 seconds more. The CPU seconds are printed too.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.interleaved import Bar, arguments, conclude, measure, report
from benchmarks.prepare_many import pictures
from linnaeus.files import write_atomic
from linnaeus.workloads.taxonomy.arrays.text_arrays import digests
from linnaeus.workloads.taxonomy.manifest.tables.column import Column
from linnaeus.workloads.taxonomy.observations import Metadata
from linnaeus.workloads.taxonomy.store import store_layout
from linnaeus.workloads.taxonomy.tree import TaxonomyTree

CHILD = Path(__file__).with_name("first_step.py")
ONLY_TORCH = "import torch, os, time; print(time.time(), flush=True); os._exit(0)"
BATCH, SIDE = "64", "48"  # of the embedded data's defaults
FEW, SPECIES, MORE = 3_000, 2_000, 3.0  # records, species, and seconds of the bar of `--records`
BARS = [Bar("linnaeus", "bare torch", 0.80)]


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--records", type=int, metavar="N", help="compare a store of N records with one of 3,000, and nothing else")
    options = parser.parse_args()
    if options.records is not None:
        return conclude([compare_stores(options.records, options.rounds)], options.json)
    with tempfile.TemporaryDirectory() as root:
        variants = {
            "linnaeus": lambda number: first_step("main", "trainer.num_workers=0", f"run.root={root}/{number}"),
            "bare torch": lambda number: first_step("bare", BATCH, SIDE),
            "hydra and bare torch": lambda number: first_step("hydra", BATCH, SIDE),
            "import torch": lambda number: seconds_of([sys.executable, "-c", ONLY_TORCH]),
        }
        seconds = measure(variants, options.rounds)
    title = f"process start to the end of the first step, {options.rounds} rounds, default threads, wall time"
    return conclude([report(title, seconds, "bare torch", BARS, (1, "s"), {})], options.json)


def compare_stores(records: int, rounds: int) -> dict[str, Any]:
    """Time the first step from a store of `records` records, and from one of `FEW` records. Return the table with its bar."""
    few, many = f"{FEW:,} records", f"{records:,} records"
    cpu: dict[str, list[float]] = {few: [], many: []}
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        stores = {name: write_store(root / str(count), count) for name, count in ((few, FEW), (many, records))}

        def timed(name: str, number: int) -> float:
            before = os.times()
            data = ["data=store", f"data.path={stores[name]}", "data.image_size=32", "trainer.num_workers=0"]
            seconds = first_step("main", *data, f"run.root={root}/runs", f"run.name={stores[name].name}-{number}")
            after = os.times()
            cpu[name].append(after.children_user + after.children_system - before.children_user - before.children_system)
            return seconds

        seconds = measure({name: partial(timed, name) for name in stores}, rounds)
    allowed = f"{few}, and {MORE:g} s"
    seconds[allowed] = [taken + MORE for taken in seconds[few]]
    notes = {name: f"{statistics.median(cpu[name]):.2f} s of CPU" for name in stores}
    title = f"process start to the end of the first step from a store, {rounds} rounds, wall time"
    return report(title, seconds, few, [Bar(many, allowed, 1.0)], (1, "s"), notes)


def write_store(store: Path, count: int) -> Path:
    """Write a store of `count` records that share 1,024 photographs. Return its path."""
    rng = np.random.default_rng(0)
    (store / "parts").mkdir(parents=True)
    species = np.arange(count) * 7919 % SPECIES
    names = [np.array([f"Genus{i:04d}" for i in range(SPECIES // 5)]), np.array([f"Species{i:05d}" for i in range(SPECIES)])]
    tree, labels = TaxonomyTree.from_codes(("genus", "species"), names, np.stack([species // 5, species], axis=1))
    paths = [f"{i // 1000:05d}/{i:08d}.jpg" for i in range(count)]
    photograph = next(pictures())
    (store / "parts/00000.bin").write_bytes(photograph * 1024)
    number = np.arange(count)
    place = np.stack([np.zeros(count, np.int64), number % 1024 * len(photograph), np.full(count, len(photograph))], axis=1)
    hashes = rng.permutation(count).astype(np.uint64) + np.uint64(1)
    arrays = {"labels": np.asfortranarray(labels), "place": place, "shape": np.tile(np.int32([96, 128]), (count, 1)), "hashes": hashes}
    for name, array in (arrays | {"digests": digests(paths)}).items():
        store_layout.write_array(store / f"{name}.npy", array)
    write_atomic(store / "taxonomy.json", json.dumps(tree.to_dict()))
    store_layout.write_lines(store / "names.txt", paths)
    store_layout.write_metadata(store, Metadata(**{name: rng.random(count, np.float32) for name in Metadata.__dataclass_fields__}))
    observer = Column((number // 20).astype(np.int32), [f"observer {i}" for i in range(count // 20 + 1)])
    columns = store_layout.write_columns(store, {"observer": observer})
    record = {"records": count, "account": {}, "excluded": {}, "encoding": {"name": "jpeg"}, "source": "a benchmark", "columns": columns}
    store_layout.write_record(store, record | {"has_split": False, "has_weight": False, "notes": [], "request": {}})
    return store


def first_step(*words: str) -> float:
    return seconds_of([sys.executable, str(CHILD), *words])


def seconds_of(command: list[str]) -> float:
    """Run a command. Return the seconds from just before its start to the time that it prints as the last word of its output."""
    # As for a user, the first start writes the compiled files of the package.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.time()
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=CHILD.parents[1], env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return float(done.stdout.split()[-1]) - start


if __name__ == "__main__":
    sys.exit(main())
