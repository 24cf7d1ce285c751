"""`linnaeus report RUN...`: write report.html of runs from their files, at any time."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Write report.html into each run directory and print its path. A directory without a run is an error of one line."""
    from linnaeus.config.messages import user_errors

    parser = argparse.ArgumentParser(prog="linnaeus report", description="Write report.html of runs from the files in their directories.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directory, such as outputs/biota/1a2b3c4d5e")
    options = parser.parse_args(arguments)
    with user_errors(2):
        for run in options.runs:
            print(report(Path(run)))
    return 0


def report(run: Path) -> Path:
    """Write report.html of one run directory, with the workload's sections where its summary has final metrics. Return its path."""
    from linnaeus.errors import ConfigError
    from linnaeus.reporting import write_report

    if not (run / "config.yaml").is_file():
        raise ConfigError(f"{run} is not a run directory: it has no config.yaml; give a folder such as outputs/biota/1a2b3c4d5e")
    try:
        experiment = json.loads((run / "run.json").read_bytes()).get("experiment", run.parent.name)
    except (OSError, ValueError):
        experiment = run.parent.name
    return write_report(run, f"{experiment} / {run.name}")
