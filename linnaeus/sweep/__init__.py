"""Several runs in one command: `python main.py -m ...`. Also one run that is launched in another way, `python main.py launch=torchrun`.

The parent trains nothing and imports no torch: it reads what is asked (`request.py`, `parameters.py`), composes and checks every trial
(`trials.py`; `study.py` where Optuna proposes them), starts each as `python main.py ...` through a launcher (`driver.py`), and writes
tables of what came out (`outcomes.py`, `record.py`, `picture.py`).
"""

from __future__ import annotations

import argparse
import sys

__all__ = ["sweep"]

INTERRUPTED = 75


def sweep(asked: argparse.Namespace) -> int:
    """Do what a parsed command line with `-m`, or with a `launch` other than process, asks for; returns the exit status: 0 all trials
    ended well, 1 one failed, 75 interrupted. Raises `ConfigError`."""
    from linnaeus.reporting import setup_logging
    from linnaeus.sweep.alone import run_alone
    from linnaeus.sweep.request import read_request
    from linnaeus.sweep.whole import run_sweep

    setup_logging(style="plain")
    try:
        request = read_request(asked)
        return run_sweep(request) if asked.multirun else run_alone(request)
    except KeyboardInterrupt:  # while trials are composed and checked; later signals are requests
        print("stopped before the first trial", file=sys.stderr)
        return INTERRUPTED
