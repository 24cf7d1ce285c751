"""Measure the cost of progress reports: the time spent on them divided by that of the whole run, from the timings of the run.

    python -m benchmarks.reporting                   a report every 1 %, every section; about a minute
    python -m benchmarks.reporting --updates 200     a short trial

One real run of the ViT of `benchmarks.loop_overhead` is made (about 55 ms per update). Bar: 0.1 % of the run. The time of a report does not
depend on the model, so the shortest run that stays under the bar is printed too.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import main as program
from benchmarks.loop_overhead import CONF, MODELS
from benchmarks.machine import describe_machine, write_numbers
from linnaeus.config.load import compose
from linnaeus.reporting.rows import read_rows

BAR = 0.001  # of the run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=1400, help="updates of the run")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number there")
    options = parser.parse_args()
    torch.set_num_threads(1)
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


if __name__ == "__main__":
    sys.exit(main())
