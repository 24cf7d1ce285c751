"""The command `linnaeus doctor`: report what is wrong with the records and photographs of a source, before training.

    linnaeus doctor manifest data.path=photos.csv
    linnaeus doctor darwin_core data.path=download.zip data.root=photos --out checked
    linnaeus doctor manifest data.path=photos.csv --corrected corrected.csv
    linnaeus doctor manifest data.path=photos.csv --strict          # exit status 1 if there is an error or a warning

The source is not changed. FOLDER/doctor.html shows the findings with photographs; FOLDER/findings.csv
has a line for each row of each finding; FOLDER/split.csv has the split that training would use, for `data.split_file`.
"""

import argparse
import csv
import io
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

from linnaeus.config.command_line import OneLineParser
from linnaeus.config.messages import user_errors
from linnaeus.errors import ConfigError, counted, shorten
from linnaeus.files import write_atomic
from linnaeus.workloads.taxonomy.doctor.at_sea import can_check_sea
from linnaeus.workloads.taxonomy.doctor.checks import examine
from linnaeus.workloads.taxonomy.doctor.corrected import check_files, check_target, write_corrected
from linnaeus.workloads.taxonomy.doctor.counts import rank_counts
from linnaeus.workloads.taxonomy.doctor.doctor_page import doctor_page
from linnaeus.workloads.taxonomy.doctor.findings import Finding, Inspected, cells_text
from linnaeus.workloads.taxonomy.doctor.inspection import inspect
from linnaeus.workloads.taxonomy.doctor.known_places import read_places
from linnaeus.workloads.taxonomy.doctor.possible_filters import filter_counts
from linnaeus.workloads.taxonomy.doctor.saved_split import SPLIT, save_split
from linnaeus.workloads.taxonomy.doctor.terminal_page import print_findings
from linnaeus.workloads.taxonomy.manifest.source_options import add_settings, add_source, check_settings, source_config

FINDINGS, PAGE = "findings.csv", "doctor.html"


def main(arguments: Sequence[str] | None = None) -> int:
    """Examine a source. Return 0, or 1 with `--strict` if there is an error or a warning. On a mistake of the user, exit with status 2 and
    one line on stderr."""
    with user_errors(2):
        options = parse(arguments)
        try:
            findings = report(options)
        except OSError as error:
            raise ConfigError(str(error)) from error
    return int(options.strict and any(finding.severity != "note" for finding in findings))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line. Raise `ConfigError` for invalid options."""
    parser = OneLineParser(prog="linnaeus doctor", description="Report what is wrong with the records and photographs of a source.")
    add_source(parser)
    add_settings(parser)
    parser.add_argument("--out", type=Path, default=Path("doctor"), metavar="FOLDER", help="folder of the report (%(default)s)")
    parser.add_argument("--strict", action="store_true", help="exit with status 1 if there is an error or a warning")
    parser.add_argument("--corrected", type=Path, metavar="FILE", help="write a CSV without the wrong rows and cells; it must be new")
    parser.add_argument(
        "--places", type=Path, metavar="FILE", help="CSV or TSV of centroids and institutions: name, latitude, longitude, kind"
    )
    parser.add_argument("--no-images", action="store_true", help="check the table only, without reading the photographs")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="processes that read photographs (%(default)s)"
    )
    options = parser.parse_intermixed_args(arguments)
    if not 1 <= options.processes <= 1024:
        raise ConfigError(f"--processes is {options.processes}; it must be from 1 to 1024")
    check_settings(options)
    return options


def report(options: argparse.Namespace) -> list[Finding]:
    """Examine the source that `options` names, write the report to files, print a short report, and return the findings."""
    corrected: Path | None = options.corrected and options.corrected.expanduser()
    if corrected is not None:
        check_target(corrected)
    places = None if options.places is None else read_places(options.places.expanduser())
    records = inspect(source_config(options), corrected is not None, places)
    if corrected is not None:
        check_files(records)
    findings = examine(records, 0 if options.no_images else options.processes)
    folder: Path = options.out.expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / FINDINGS, findings_table(records, findings))
    title, counts, filters = title_of(options.source, records), rank_counts(records), filter_counts(records)
    write_atomic(folder / PAGE, doctor_page(title, records, counts, filters, findings))
    print_findings(title, counts, filters, findings)
    if records.config.latitude_column is not None and not can_check_sea():
        print("places at sea are not checked; to check them: pip install global-land-mask")
    print(f"{'page' if options.no_images else 'with photographs'}: {folder / PAGE}\nall rows: {folder / FINDINGS}")
    print("\n".join(save_split(folder / SPLIT, records)))
    if corrected is not None:
        print(write_corrected(corrected, records, findings, options.overrides))
    return findings


def title_of(source: str, records: Inspected) -> str:
    """Return the heading of the report: source, path and number of rows."""
    return f"{source} {shorten(str(records.config.path))}: {counted(len(records), 'row')}"


def findings_table(records: Inspected, findings: Sequence[Finding]) -> str:
    """Return findings.csv as text, with a line for each row of each finding. Rows have their numbers in the table of the source, from 1."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("row", "photograph", "severity", "check", "text", "cells"))
    for finding in findings:
        names = records.files.names[finding.rows].tolist()
        lines = finding.details or itertools.repeat(finding.text)
        for row, name, line in zip(finding.rows.tolist(), names, lines, strict=False):
            table.writerow((records.row_numbers[row], name, finding.severity, finding.check, line, cells_text(records, finding, row)))
    return text.getvalue()


if __name__ == "__main__":
    raise SystemExit(main())
