"""Sweeps: several runs in one command, `python main.py -m ...`. Also a single run with a launcher, `python main.py launch=torchrun`.

The parent trains nothing and does not import torch. It reads the request (`request.py`, `parameters.py`), composes and checks the trials
(`trial.py`, `trial_source.py`; `optuna_study.py` proposes them one by one), starts each as `python main.py ...` through a launcher
(`trial_runner.py`), and writes tables of the results (`trial_results.py`, `sweep_files.py`, `picture.py`).
"""

from __future__ import annotations

import argparse
import sys

__all__ = ["sweep"]


def sweep(arguments: argparse.Namespace) -> int:
    """Run a parsed command line that has `-m`, or a `launch` other than process. Return the exit status: 0 if all trials ended well, 1 if
    one failed, 75 if interrupted. Raise `ConfigError` for a mistake in the command."""
    from linnaeus.launch.launcher import EXIT_INTERRUPTED
    from linnaeus.reporting import setup_logging
    from linnaeus.sweep.request import read_request
    from linnaeus.sweep.run_sweep import run_single, run_sweep

    setup_logging(style="plain")
    try:
        request = read_request(arguments)
        return run_sweep(request) if arguments.multirun else run_single(request)
    except KeyboardInterrupt:  # while trials are composed and checked, before `StopRequests`
        print("stopped before the first trial", file=sys.stderr)
        return EXIT_INTERRUPTED
