"""One run, launched in another way than as this process: `python main.py launch=torchrun launch.processes=4`."""

from __future__ import annotations

import logging
import time

from linnaeus.launch import Job, build_launcher
from linnaeus.sweep.outcomes import SAVED, STOPPED
from linnaeus.sweep.request import Request
from linnaeus.sweep.stopping import Requests
from linnaeus.sweep.trials import only_trial

log = logging.getLogger("linnaeus")

FINISHED, FAILED, USAGE = 0, 1, 2
LOOK = 0.1  # seconds between two looks at it


def run_alone(request: Request) -> int:
    """Start it, show what it prints, pass requests to stop on; returns the exit status of the run, whatever its launcher returned."""
    trial = only_trial(request)
    if trial.is_finished() and not trial.config.plan:
        log.info("%s is finished; for another run choose another run.name", trial.directory)
        return FINISHED
    launcher = build_launcher(request.launch, 1)
    passed_on, said = 0, ""
    try:
        with Requests() as requests:
            handle = launcher.start(Job(trial.overrides, trial.directory, trial.config_dir, log=None))
            while (status := handle.poll()) is None:
                if (now := handle.describe()) != said:
                    log.info("%s: %s", trial.directory, now)
                    said = now
                while passed_on < requests.count:
                    passed_on += 1
                    handle.stop()
                time.sleep(LOOK)
    finally:
        launcher.close()
    if status == SAVED or (passed_on and status in STOPPED):
        return SAVED
    return status if status in (FINISHED, USAGE) else FAILED
