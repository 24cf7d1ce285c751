"""Run everything that needs a GPU, one step after the other, each with a time limit: the tests marked `gpu`, and the benchmarks.

    python -m benchmarks.on_gpu --out FOLDER                   all steps, in the order of STEPS; their limits add up to 44 minutes
    python -m benchmarks.on_gpu --out FOLDER --steps tests vit_small heads
    python -m benchmarks.on_gpu --out FOLDER --limit 500       stop after 500 seconds; steps that are left out are named

Most of the time of a benchmark is compiling. So the step `compile` runs the networks of the later steps for two updates first, three at the
same time, and torch's caches keep the graphs. The step `starts` has empty caches of its own, as its launches are measured with compiling.

Each step is a process group of its own that is killed at the limit of the step with all of its processes: a process left behind would use
the GPU during the next step. The output of a step goes to FOLDER/<step>.log, numbers to FOLDER/<step>.json, and the end of the output is
shown. Tests are shown as they end, failures with their text.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
GPU_TESTS = (
    "tests/laws/test_on_gpu.py",
    "tests/workloads/taxonomy/test_taxonomy_metrics.py",
    "tests/workloads/taxonomy/trained/test_batch_size.py",
)
RECOVERY = ("--sets", "large", "--device", "cuda", "--seeds", "0", "--variants", "batch_topk", "matryoshka", "--samples", "4000000")
HEADS = ("conditional head", "conditional head, GradNorm every 10th", "marginal head, GradNorm every 10th")
TAIL = 14  # lines of output that are shown at the end of a step


class Step(NamedTuple):
    """A command of Python. words: {out} stands for FOLDER. limit: seconds. numbers: True if it takes `--json`."""

    words: tuple[str, ...]
    limit: int
    numbers: bool = True


def vision(*words: str, limit: int) -> Step:
    return Step(("-m", "benchmarks.vision", *words), limit)


STEPS = {
    "tests": Step(("-m", "pytest", "-m", "gpu", *GPU_TESTS, "-v", "-p", "tests.failures_at_once"), 300, numbers=False),
    "vit_small": vision("--networks", "vit_small", "--compile", "whole", "blocks", "--updates", "15", limit=100),
    "heads": vision("--part", "heads", "--updates", "20", "--species", "10000", "--variants", *HEADS, limit=120),
    "starts": vision("--part", "starts", "--networks", "vit_base", "--compile", "whole", "blocks", limit=300),
    "checkpointing": vision("--part", "checkpointing", "--updates", "3", limit=150),
    "convnext_tiny": vision("--networks", "convnext_tiny", "--updates", "20", limit=120),
    "vit_large": vision("--networks", "vit_large", "--updates", "4", limit=150),
    "vit_base": vision("--networks", "vit_base", "--updates", "6", limit=100),
    "heads_100000": vision("--part", "heads", "--updates", "20", "--species", "100000", "--variants", *HEADS[1:], limit=150),
    "data": vision("--part", "data", "--photographs", "8192", limit=200),
    "deterministic": vision("--part", "deterministic", "--updates", "10", limit=120),
    "resnet50": vision("--networks", "resnet50", "--updates", "20", limit=150),
    "language": Step(("-m", "benchmarks.language", "--only", "gpu"), 150),
    "vocabulary_loss": Step(("-m", "benchmarks.vocabulary_loss", "--device", "cuda"), 90),
    "checkpoint": Step(("-m", "benchmarks.checkpoint", "--device", "cuda", "--bar"), 150),
    "dictionary_recovery": Step(("-m", "benchmarks.dictionary_recovery", *RECOVERY, "--results", "{out}/dictionary_recovery.jsonl"), 300),
}
COMPILED = ("vit_small", "heads", "checkpointing", "convnext_tiny", "vit_large", "vit_base", "heads_100000", "resnet50")
AT_ONCE = 3  # of them; seven did not fit into the 140 GiB of an H200


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where output and numbers are written")
    parser.add_argument("--steps", nargs="+", choices=["compile", *STEPS], metavar="STEP", help=f"compile, {', '.join(STEPS)}")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds of all steps together")
    options = parser.parse_args()
    chosen = options.steps or ["tests", "compile", *list(STEPS)[1:]]
    options.out.mkdir(parents=True, exist_ok=True)
    end, left_out, failed = time.monotonic() + options.limit, list[str](), list[str]()
    for name in chosen:
        left = end - time.monotonic()
        if left < 10:
            left_out.append(name)
        elif name == "compile":
            compile_first([step for step in chosen if step in COMPILED], options.out, left)
        elif not run_step(name, options.out, left):
            failed.append(name)
    print(f"failed or stopped: {', '.join(failed) or 'none'}; left out: {', '.join(left_out) or 'none'}", flush=True)
    return int(bool(failed or left_out))


def run_step(name: str, out: Path, left: float) -> bool:
    """Run a step within `left` seconds and show the end of its output. Return True if it ends with status 0."""
    step, start = STEPS[name], time.monotonic()
    numbers = ["--json", str(out / f"{name}.json")] if step.numbers else []
    print(f"== {name}", flush=True)
    words = [word.replace("{out}", str(out.resolve())) for word in step.words]
    status = run_in_group([*words, *numbers], out / f"{name}.log", min(step.limit, left))
    lines = (out / f"{name}.log").read_text(errors="replace").splitlines()
    print("\n".join(line[:200] for line in lines[-TAIL:] if line.strip()))
    print(f"== {name}: {'stopped by its limit' if status is None else f'status {status}'}, {time.monotonic() - start:.0f} s", flush=True)
    return status == 0


def compile_first(names: list[str], out: Path, left: float) -> None:
    """Run the benchmarks of the steps `names` for a round of two updates, `AT_ONCE` at the same time, within `left` seconds."""
    end, start = time.monotonic() + left, time.monotonic()
    short = ("--rounds", "1", "--updates", "2")
    waiting = [(name, [*STEPS[name].words, *short]) for name in names]
    running: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            name, words = waiting.pop(0)
            running[name] = start_group(words, out / f"compile_{name}.log"), min(end, time.monotonic() + STEPS[name].limit)
        for name, (process, limit) in list(running.items()):
            if process.poll() is not None or time.monotonic() > limit:
                kill_group(process)
                del running[name]
                print(f"== compiled {name}: status {process.returncode}, {time.monotonic() - start:.0f} s", flush=True)
        if time.monotonic() > end:
            waiting.clear()
        time.sleep(0.2)


def run_in_group(words: list[str], log: Path, limit: float) -> int | None:
    """Run Python with `words` in a process group of its own. Return its status; None if it was killed at the limit, in seconds."""
    process = start_group(words, log)
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        kill_group(process)


def start_group(words: list[str], log: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with log.open("wb") as output:
        command = [sys.executable, *words]
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the group of a process, and wait for the process."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    sys.exit(main())
