"""Part `starts` of `benchmarks.vision`: from the start of `python main.py` to its first update, and from SIGTERM to its exit.

Each choice of `trainer.compile` is launched twice, as a run that is preempted: the first launch compiles, the second one loads the compiled
graphs that the run directory keeps. torch's own caches are empty at each launch, as on another machine."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.interleaved import Bar, Seconds, report
from benchmarks.vision.settings import CONF, NETWORKS, settings
from linnaeus.launch.launcher import EXIT_INTERRUPTED

MAIN = Path(__file__).parents[2] / "main.py"
FIRST_UPDATE = re.compile(r"first update ([\d.]+) s after the start of the process: (.*)")
OUTPUT = "output.txt"
SETTLED = 2.0  # seconds from the first update to SIGTERM
BLOCKS_OF_WHOLE, SECOND_OF_FIRST = 0.60, 0.35
SECOND, EXIT = 20.0, 10.0  # seconds, bars for ViT-B on a GPU


def measure_starts(name: str, options: Any) -> list[dict[str, Any]]:
    """Launch and stop the run of each choice in `options.compile` twice. Return the tables."""
    batch = options.batch or NETWORKS[name].batch
    starts: Seconds = {}
    exits: Seconds = {}
    notes: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        for choice in options.compile:
            more = f"run.name=compile-{choice}", "schedule.checkpoint_at_end=true"
            words = settings(name, batch, 64, 1000, root, options.device, choice, *more)
            for number, launch in enumerate(("first launch", "second launch")):
                variant = f"{choice}, {launch}"
                with running(words, root / f"{choice}-{number}") as process:
                    line = first_update(root, choice, number, process)
                    starts[variant], notes[variant] = [float(line[1])], line[2]
                    time.sleep(SETTLED)
                    exits[variant] = [seconds_to_exit(process)]
                found = f"first update {line[1]} s ({line[2]}), exit {exits[variant][0]:.1f} s"
                print(f"{variant}: {found}", file=sys.stderr, flush=True)  # at once, since a lent GPU may be taken away
    title = f"{name}, {options.device}, batch {batch}"
    first = next(iter(starts))
    bars = [Bar(f"{choice}, second launch", f"{choice}, first launch", SECOND_OF_FIRST) for choice in options.compile]
    if {"whole", "blocks"} <= set(options.compile):
        bars.append(Bar("blocks, first launch", "whole, first launch", BLOCKS_OF_WHOLE))
    begins = f"{title}: from the start of the process to the first update; bar of a second launch {SECOND:.0f} s"
    ends = f"{title}: from SIGTERM to the exit of the process, with its state saved; bar {EXIT:.0f} s"
    return [report(begins, starts, first, bars, (1, "s"), notes), report(ends, exits, first, [], (1, "s"), {})]


@contextlib.contextmanager
def running(words: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `python main.py` with `words` during the block, and kill the process at its end. `folder`: empty folder for torch's own caches
    and for the output of the process."""
    folder.mkdir()
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TRITON_CACHE_DIR": str(folder / "triton")}
    environment["PYTHONPATH"] = os.pathsep.join([str(MAIN.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(MAIN), "--config-dir", str(CONF), *words]
    with (folder / OUTPUT).open("wb") as output:
        process = subprocess.Popen(command, env=environment, cwd=MAIN.parent, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def first_update(root: Path, choice: str, number: int, process: subprocess.Popen[bytes]) -> re.Match[str]:
    """Wait for the first update of a launch. Return the line about it in the log of the run. Raise `SystemExit` if the run ends.

    `number`: 0 for the first launch of the run, 1 for the second one."""
    log = root / "vision" / f"compile-{choice}" / "train.log"
    while process.poll() is None:
        found = list(FIRST_UPDATE.finditer(log.read_text())) if log.is_file() else []
        if len(found) > number:
            return found[number]
        time.sleep(0.1)
    raise SystemExit(f"the run ended before its first update:\n{(root / f'{choice}-{number}' / OUTPUT).read_text()[-2000:]}")


def seconds_to_exit(process: subprocess.Popen[bytes]) -> float:
    """Send SIGTERM. Return the seconds until `process` has saved its state and ended. Raise `SystemExit` if it ends otherwise."""
    start = time.perf_counter()
    process.send_signal(signal.SIGTERM)
    status = process.wait(600)
    if status != EXIT_INTERRUPTED:
        raise SystemExit(f"the run ended with status {status} after SIGTERM, not {EXIT_INTERRUPTED}")
    return time.perf_counter() - start
