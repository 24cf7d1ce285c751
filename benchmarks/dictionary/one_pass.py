"""Time dictionaries that are trained in one pass over the activations (`model.frontier`), and each of them trained alone."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from typing import Any

from benchmarks.dictionary.reading import Reading
from benchmarks.drivers import Ours
from benchmarks.interleaved import Bar, measure, report
from linnaeus.config.load import compose
from linnaeus.distributed import DistributedContext

TOGETHER, ALONE = "all in one pass", "one, mean"
BAR = 2.0  # times the time of one, for four
WINDOWS = 16  # of an epoch, so that hardly any activation is still in the ring of the two newest windows when the next epoch reads it
QUIET = ["schedule.validate=[]", "schedule.validate_at_end=false", "schedule.checkpoint=[]", "schedule.checkpoint_at_end=false"]
QUIET += ["lr_scheduler.warmup=0steps", "logger.console=quiet", "logger.report=false"]


def compare(reading: Reading, ks: Sequence[int], stored: bool, rounds: int, updates: int, batch: int) -> dict[str, Any]:
    """Print and return the table of CPU times of an update. A round is an epoch of about `updates` updates of `train_one_epoch`.

    ks: active features of each dictionary. stored: True to read stored activations, False to compute them in each epoch. There is a bar
    only for four `ks` and stored=False."""
    context = DistributedContext().initialize(device="cpu")
    models = {f"k = {k} alone": [f"model.k={k}"] for k in ks} | {TOGETHER: [f"model.frontier={list(ks)}"]}
    samples = min(reading.source.count, -(-updates * batch * reading.source.count // reading.rows))
    reading.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=reading.folder) as root:
        words = [*reading.words(samples), f"data.window={max(1, updates * batch // WINDOWS)}", f"data.stored={stored}"]
        words += ["model=batch_topk", f"trainer.global_batch_size={batch}", f"trainer.length={rounds + 1}epochs", *QUIET]
        words += [f"run.root={root}", "run.experiment=one_pass"]
        drivers = {
            name: Ours(compose([*words, *own, f"run.name=run{number}"]), context) for number, (name, own) in enumerate(models.items())
        }
        seconds = measure(drivers, rounds)
        made = drivers[TOGETHER].plan.length.steps_per_epoch
        for driver in drivers.values():
            driver.close()
    seconds = with_mean({name: [taken / made for taken in times] for name, times in seconds.items()})
    notes = {name: f"{batch / statistics.median(times):,.0f} samples per second" for name, times in seconds.items()}
    kind = "stored" if stored else "computed on the fly"
    title = f"{reading.name}, activations {kind}: CPU time of an update of {batch} activations"
    bars = [Bar(TOGETHER, ALONE, BAR)] if len(ks) == 4 and not stored else []
    return report(title, seconds, ALONE, bars, (1e3, "ms"), notes)


def with_mean(seconds: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return the seconds with a further row: in each round, the mean of the dictionaries alone."""
    alone = [times for name, times in seconds.items() if name != TOGETHER]
    return {**seconds, ALONE: [statistics.mean(one) for one in zip(*alone, strict=True)]}
