"""The command `linnaeus report`: write report.html of one run, or comparison.html of several runs, from the files of the run directories.

    linnaeus report outputs/biota/1a2b3c4d5e                              outputs/biota/1a2b3c4d5e/report.html
    linnaeus report outputs/biota/1a2b3c4d5e --output page.html           page.html
    linnaeus report outputs/biota/1a2b3c4d5e outputs/biota/6f7a8b9c0d     outputs/biota/comparison.html
    linnaeus report outputs/sweeps/<name>                                 outputs/sweeps/<name>/comparison.html

A run may be in progress or interrupted. `--output FILE` chooses another path, for example if the run directory cannot be written.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from linnaeus.config.command_line import OneLineParser
from linnaeus.config.run_command import run_command
from linnaeus.errors import ConfigError
from linnaeus.files import TEMPORARY

if TYPE_CHECKING:
    from linnaeus.reporting.report.html_parts import Section
    from linnaeus.reporting.report.run_files import RunFiles


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return 0, or 130 after Ctrl-C. Exit with status 2 and one line on stderr after a user's mistake."""
    return run_command(arguments, parse, write)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line."""
    about = "Write report.html of a run from the files in its directory, or one page that compares several runs."
    parser = OneLineParser(prog="linnaeus report", description=about)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run directory, such as outputs/biota/1a2b3c4d5e, or a sweep's")
    output = "file of the page (RUN/report.html; of several, comparison.html in the folder that contains the runs, or in that of the sweep)"
    parser.add_argument("--output", type=Path, metavar="FILE", help=output)
    return parser.parse_args(arguments)


def write(options: argparse.Namespace) -> list[str]:
    """Write the report of one run, or the comparison of several runs. Return the lines to print: the path of the page.

    Raise `ConfigError` if a file of a run cannot be read, or if the page cannot be written."""
    from linnaeus.reporting.report.comparison.compared_runs import find_runs
    from linnaeus.reporting.report.comparison.comparison_page import comparison_path, write_comparison
    from linnaeus.reporting.report.run_report import write_report
    from linnaeus.rundir.saved_run import without_comparison

    options.runs = without_comparison(options.runs)
    runs = find_runs(options.runs)
    path = options.output or (runs[0].path / "report.html" if len(runs) == 1 else comparison_path(options.runs))
    try:
        return [str(write_comparison(runs, path) if len(runs) > 1 else write_report(runs[0], sections_of(runs[0]), path))]
    except OSError as error:
        name = Path(str(error.filename or path)).name
        reason = error.strerror or error
        if name == path.name or name.startswith(TEMPORARY):
            raise ConfigError(f"{path} cannot be written ({reason}); choose another file with --output") from None
        raise ConfigError(f"{error.filename} cannot be read ({reason})") from None


def sections_of(run: RunFiles) -> list[Section]:
    """Return the sections that the workload of a run adds to its report. Return [] if config.yaml is missing, damaged or names no workload,
    if the workload is unknown, or if a plugin or the package of the workload cannot be imported."""
    from linnaeus import workloads
    from linnaeus.config.registry import import_plugins

    workload = run.config.get("workload")
    name = workload.get("name") if isinstance(workload, dict) else None
    try:
        import_plugins(run.config.get("plugins") or ())
        return workloads.report_sections(str(name), run) if name else []
    except (ConfigError, ModuleNotFoundError):
        return []


if __name__ == "__main__":
    raise SystemExit(main())
