"""Measure the cost of progress reports: the time spent on them divided by that of the whole run, from the timings of the run.

    python -m benchmarks.reporting                   a report every 1 %, every section; about a minute
    python -m benchmarks.reporting --updates 200     a short trial
    python -m benchmarks.reporting --overhead        everything that watches a run, on against off, interleaved; about 5 minutes
    torchrun --nproc-per-node 2 -m benchmarks.reporting --overhead       the same on two processes, each with half of the batch

One real run of the ViT of `benchmarks.loop_overhead` is made (about 55 ms per update). Bar: 0.1 % of the run. The time of a report does not
depend on the model, so the shortest run that stays under the bar is printed too.

With `--overhead` two runs are compared by the CPU time of their updates, in interleaved rounds: `ON` (rows, reports, alarms, CSV,
TensorBoard, MFU) and `OFF` (none of these). A report is made every 10 updates of the ViT and every 400 of the MLP, as often as one of 100
in a run of a minute, and a row every 50 updates. Rounds have 50 and 400 updates in slices of 2 and 50, so reports and rows always fall into
the same slices. Two runs in one process differ by up to 1 % for no other reason than the places of their tensors in memory, so several
pairs of runs are measured at once, and the interval is Student's t over the pairs. Bars: at most 1.01 on the small ViT, 1.03 on the MLP.
With several processes each one prints the ratio of its own CPU time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import main as program
from benchmarks.drivers import Ours
from benchmarks.interleaved import ROUNDS, Bar, Ratio, conclude, ratio, verdict
from benchmarks.interleaved import measure as interleaved
from benchmarks.loop_overhead import CONF, MODELS, configure
from benchmarks.machine import describe_machine, write_numbers
from linnaeus.config.load import compose
from linnaeus.distributed import DistributedContext
from linnaeus.metrics.student import t_quantile
from linnaeus.reporting.jsonl.rows import read_rows

BAR = 0.001  # of the run
ON = ["schedule.log=[50steps]", "logger.csv=true", "logger.tensorboard=true", "logger.peak_tflops=0.1"]
PAIRS = 6
OFF = ["schedule.report=[]", "schedule.log=[]", "logger.alarms=false"]
OVERHEAD = {"vit": (1.01, 50, 10, 25), "mlp": (1.03, 400, 400, 8)}  # bar, updates of a round and between two reports, slices of a round


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=1400, help="updates of the run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    parser.add_argument("--overhead", action="store_true", help="compare everything on with everything off")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="interleaved rounds of --overhead")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="pairs of runs of --overhead, at least 2")
    parser.add_argument("--models", nargs="+", choices=[*OVERHEAD], default=[*OVERHEAD], help="models of --overhead")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.overhead:
        return conclude([overhead(name, options.rounds, options.pairs) for name in options.models], options.json)
    found = measure(options.updates)
    each = found["reporting_seconds"] / found["reports"]
    said = "held" if found["share"] <= BAR else "MISSED"
    print(f"{found['reports']} reports of {each * 1e6:.0f} us, {found['reporting_seconds']:.3f} s in a run of {found['run_seconds']:.1f} s")
    print(f"  share of the run: {100 * found['share']:.3f} %, bar {100 * BAR:.1f} %: {said}")
    print(f"  101 reports stay under it in runs of {101 * each / BAR:.0f} s and more")
    machine = describe_machine()
    print("\n" + ", ".join(f"{key} {value}" for key, value in machine.items()))
    if options.json is not None:
        write_numbers(options.json, {"machine": machine, **found})
    return int(said == "MISSED")


def measure(updates: int) -> dict[str, Any]:
    """Make a run of `updates` updates in a temporary directory. Return the numbers of reports and the times."""
    batch, _, overrides = MODELS["vit"]
    sizes = [f"trainer.global_batch_size={batch}", f"trainer.micro_batch_size={batch}", f"data.samples={16 * batch}"]
    with tempfile.TemporaryDirectory() as root:
        chosen = [*overrides, *sizes, f"trainer.length={updates}steps", f"run.root={root}", "run.name=run", "schedule.report=[1%]"]
        assert program.run(compose(["experiment=loop", *chosen], CONF)) == program.EXIT_FINISHED
        directory = Path(root) / "loop" / "run"
        timings = json.loads((directory / "summary.json").read_text())["timings"]
        reports = len(read_rows(directory / "reports.jsonl"))
    seconds, whole = timings["time/reporting_seconds"], timings["time/wall_seconds"]
    return {"updates": updates, "reports": reports, "reporting_seconds": seconds, "run_seconds": whole, "share": seconds / whole}


def overhead(model: str, rounds: int, pairs: int) -> dict[str, Any]:
    """Time the updates of `pairs` runs with `ON` and as many with `OFF`. Print and return the table with its bar."""
    batch, _, overrides = MODELS[model]
    context = DistributedContext().initialize(device="cpu")
    with tempfile.TemporaryDirectory() as own:
        root = context.broadcast_object(own)
        bar, updates, every, slices = OVERHEAD[model]
        variants = {"on": [*ON, f"schedule.report=[{every}steps]"], "off": OFF}
        drivers = {}
        for pair in range(pairs):
            for name in sorted(variants, reverse=pair % 2 == 0):  # which of the two is made first alternates
                chosen = [*overrides, *variants[name], f"run.name={name}{pair}"]
                config = configure(chosen, batch, updates // slices, (rounds + 1) * slices, root, context.world_size)
                drivers[f"{name}{pair}"] = Ours(config, context)
        seconds = interleaved(drivers, rounds, slices)
        for driver in drivers.values():
            driver.close()
    ratios = [ratio(seconds, f"on{pair}", f"off{pair}", slices=slices).median for pair in range(pairs)]
    mean, half = statistics.mean(ratios), t_quantile(pairs - 1) * statistics.stdev(ratios) / pairs**0.5
    found = Ratio(mean, mean - half, mean + half)
    ms = 1000 * slices / updates * statistics.median(time for pair in range(pairs) for time in seconds[f"off{pair}"])
    said = verdict(found, Bar("on", "off", bar), rounds)
    lines = [
        f"{model}, batch {batch}, {pairs} pairs, {rounds} rounds of {updates} updates, 1 thread, CPU time; off: {ms:.2f} ms an update",
        f"  pairs: {', '.join(f'{one:.3f}' for one in ratios)}",
        f"  on / off: {mean:.3f} ({found.low:.3f} to {found.high:.3f}), bar {bar:.2f}: {said}",
    ]
    print("\n" + "\n".join(lines), flush=True)
    return {"title": model, "pairs": ratios, "seconds": seconds, "bars": [{**asdict(found), "at_most": bar, "verdict": said}]}


if __name__ == "__main__":
    sys.exit(main())
