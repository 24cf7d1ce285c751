"""A replacement of main.py for tests of sweeps: a run directory, updates of some milliseconds that survive a kill, a summary.

`python tests/sweep/fake_run.py overrides...`; seed=13 crashes after its first update. UPDATE_SECONDS in the environment is the time of
an update.
"""

import contextlib
import dataclasses
import json
import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from linnaeus.config import compose
from linnaeus.config.command_line import parse_command_line
from linnaeus.config.messages import user_errors
from linnaeus.reporting.results import write_summary
from linnaeus.rundir import RunDirectory

STEPS = 8


def loss(config: Any) -> float:
    """Return a loss that is least at a learning rate of 0.003 and a dropout of 0.2."""
    return round(math.log10(config.optimizer.lr / 0.003) ** 2 + (config.model.dropout - 0.2) ** 2 + 0.01 * config.seed, 12)


def fake_run(config: Any) -> int:
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, lambda number, _: signals.append(number))
    directory = RunDirectory(dataclasses.asdict(config))
    directory.start()
    with contextlib.ExitStack() as stack:
        stack.callback(directory.release)
        path = directory.path
        step = json.loads((path / "step.json").read_text()) if (path / "step.json").exists() else 0
        while step < STEPS and not signals:
            time.sleep(float(os.environ.get("UPDATE_SECONDS", "0.01")))
            step += 1
            (path / "step.tmp").write_text(json.dumps(step))
            (path / "step.tmp").replace(path / "step.json")
            with (path / "updates").open("a") as file:
                print(step, time.time(), file=file)
            if config.seed == 13:
                raise RuntimeError("seed 13 always crashes")
        value = loss(config)
        final = {"val/loss": value, "val/r2": 1 - value, "val/few": math.nan}
        timings = {"time/ms_per_step": 1000 * time.process_time() / STEPS}
        measured = dict(best={"val/loss": {"value": value, "global_step": STEPS}}, final=final) if step == STEPS else {}
        write_summary(
            path / "summary.json",
            "finished" if step == STEPS else "interrupted",
            step,
            wall_seconds=time.process_time(),
            timings=timings,
            **measured,
        )
    return 0 if step == STEPS else 75


if __name__ == "__main__":
    with user_errors(2):
        parsed = parse_command_line(sys.argv[1:])
        sys.exit(fake_run(compose(parsed.overrides, parsed.config_dir)))
