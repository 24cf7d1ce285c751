"""How long a person waits from `python main.py` to the end of the first optimizer step, beside a bare script that imports torch.

    python -m benchmarks.start_up                     about 2 minutes

Processes are started one after the other, the variants interleaved; the time is wall time from just before the spawn to the end of
the first update, with a warm file cache. `linnaeus` is `python main.py trainer.num_workers=0` on the embedded data, outputs and all, in
a fresh directory. The bare script takes one step of the same network with `torch.optim.AdamW` on random pictures and does nothing
else. Bar: at most 0.80 of it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.interleaved import Bar, arguments, conclude, measure, report

CHILD = Path(__file__).with_name("first_step.py")
ONLY_TORCH = "import torch, os, time; print(time.time(), flush=True); os._exit(0)"
BATCH, SIDE = "64", "48"  # of the embedded data's defaults
BARS = [Bar("linnaeus", "bare torch", 0.80)]


def main() -> int:
    options = arguments(__doc__).parse_args()
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


def first_step(*words: str) -> float:
    return seconds_of([sys.executable, str(CHILD), *words])


def seconds_of(command: list[str]) -> float:
    """From just before the spawn to the time that the child prints as the last word of its output."""
    start = time.time()
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=CHILD.parents[1])
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return float(done.stdout.split()[-1]) - start


if __name__ == "__main__":
    sys.exit(main())
