"""Part `data` of `benchmarks.vision`: time training from photographs of a prepared store, compared with training on device tensors."""

from __future__ import annotations

import functools
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.data import make_photographs, prepare
from benchmarks.drivers import Ours
from benchmarks.interleaved import Bar, measure, report
from benchmarks.vision.loops import OursOnDevice, timed
from benchmarks.vision.settings import NETWORKS, configure, settings
from linnaeus.distributed import DistributedContext

PHOTOGRAPHS = 16_384
CHUNK = 256  # photographs that a process makes at once
SYNTHETIC = "device tensors"
STORES = {"jpeg": "JPEG store", "raw": "raw store"}
AT_MOST = 1 / 0.97  # of the time on device tensors
WAITING = 0.03  # largest share of the time spent waiting for data


class FromStore(Ours):
    """Driver of the loop of linnaeus with its own loader. `waited`: share of each round's time spent waiting for data, 0 to 1."""

    def __init__(self, config: Any, context: DistributedContext) -> None:
        super().__init__(config, context)
        self.waited: list[float] = []

    def __call__(self, epoch: int) -> float:
        before = self.training.clock.waiting
        seconds = timed(self.context.device, lambda: super(FromStore, self).__call__(epoch))
        self.waited.append((self.training.clock.waiting - before) / seconds)
        return seconds


def measure_store(name: str, options: Any, context: DistributedContext) -> list[dict[str, Any]]:
    """Time training from a JPEG store, from a raw store and on device tensors. Return a list with the table."""
    batch = options.batch or NETWORKS[name].batch
    with tempfile.TemporaryDirectory() as temporary:
        root, drivers = Path(temporary), dict[str, Any]()
        cores = len(os.sched_getaffinity(0))
        folder = make_in_processes(root / "photographs", options.photographs, cores)
        common = settings(name, batch, options.updates, options.rounds + 1, root / "runs", options.device, options.compile[0])
        drivers[SYNTHETIC] = OursOnDevice(configure([*common, "augment=standard", "augment.place=device", "run.name=synthetic"]), context)
        for encoding, variant in STORES.items():
            store = prepare(folder, root / encoding, encoding, cores)
            words = [word for word in common if not word.startswith(("data.train_samples", "data.species"))]
            words += ["data=store", f"data.path={store}", "data.components=[]", "data.validation_fraction=0.01", "augment=standard"]
            words += ["augment.place=device", f"run.name={encoding}", f"trainer.num_workers={max(cores - 1, 1)}"]
            drivers[variant] = FromStore(configure(words), context)
        updates = {variant: len(driver.training.train_loader) for variant, driver in drivers.items()}
        seconds = measure(drivers, options.rounds)
        shares = {v: sorted(d.waited[1:])[len(d.waited[1:]) // 2] for v, d in drivers.items() if isinstance(d, FromStore)}
        for driver in drivers.values():
            driver.close()
    per_update = {variant: [s / updates[variant] for s in times] for variant, times in seconds.items()}
    notes = {v: f"{batch / sorted(t)[len(t) // 2]:,.0f} images/s" for v, t in per_update.items()}
    notes |= {v: f"{notes[v]}, waiting for data {100 * share:.1f} %, bar {100 * WAITING:.0f}" for v, share in shares.items()}
    bars = [Bar(variant, SYNTHETIC, AT_MOST) for variant in STORES.values()]
    title = f"{name}, batch {batch}, {options.updates} updates a round, {options.rounds} rounds"
    return [report(title, per_update, SYNTHETIC, bars, (1000, "ms"), notes)]


def make_in_processes(folder: Path, count: int, processes: int) -> Path:
    """Write `count` photographs to `folder` with several processes. Return `folder`."""
    with ProcessPoolExecutor(processes) as pool:
        starts = range(0, count, CHUNK)
        list(pool.map(functools.partial(make_photographs, folder), [min(CHUNK, count - first) for first in starts], starts))
    return folder
