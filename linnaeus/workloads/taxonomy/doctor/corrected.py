"""Write the corrected manifest (`--corrected`): the columns of the source as CSV, without wrong rows and with wrong cells empty.

Findings with `leave_out=True` remove their rows. The field `empty` of a finding lists the columns whose cells are emptied in its rows.
Notes, and findings without these two fields, such as a leak between splits, change nothing.
"""

import csv
import io
import os
import shlex
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np

from linnaeus.config.command_line import setting_text
from linnaeus.errors import ConfigError, counted, quoted, redacted
from linnaeus.files import write_atomic
from linnaeus.workloads.taxonomy.config import ManifestConfig
from linnaeus.workloads.taxonomy.doctor.findings import Finding, Inspected
from linnaeus.workloads.taxonomy.images.image_files import FolderFiles
from linnaeus.workloads.taxonomy.images.url_files import UrlFiles, is_url
from linnaeus.workloads.taxonomy.manifest.records import MEMBERS
from linnaeus.workloads.taxonomy.sources.folders.zip_files import ZipFiles

CHUNK = 10_000  # rows in memory as Python strings


def check_target(path: Path) -> None:
    """Raise `ConfigError` if the file `path` exists or if its folder does not exist."""
    if os.path.lexists(path):
        raise ConfigError(f"--corrected {quoted(str(path), 200)} exists; choose a new file")
    if not path.parent.is_dir():
        raise ConfigError(f"--corrected {quoted(str(path), 200)}: its folder does not exist; create it")


def check_files(records: Inspected) -> None:
    """Raise `ConfigError` if a manifest cannot name the photographs of the source. It can name files in a folder or a zip file, or at URLs,
    and the photographs of the sources `MEMBERS`."""
    if not isinstance(records.files, FolderFiles | UrlFiles | ZipFiles) and records.config.name not in MEMBERS:
        raise ConfigError("--corrected: a manifest cannot name the photographs of this source, which are in data.images; remove the option")


def write_corrected(path: Path, records: Inspected, findings: Sequence[Finding], overrides: Sequence[str]) -> str:
    """Write the corrected manifest to `path`. Return two lines of text: the numbers of rows left out and cells emptied, and the command
    that trains on the manifest. `overrides`: settings of the source on the command line, KEY=VALUE."""
    applied = [finding for finding in findings if finding.severity != "note"]
    keep = np.ones(len(records), dtype=bool)
    for finding in applied:
        keep[finding.rows] &= not finding.leave_out
    empty = {name: np.zeros(len(records), dtype=bool) for name in records.table.columns}
    for finding in applied:
        for name in finding.empty:
            empty[name][finding.rows] = True
    filled = {name: _filled(records, name) & keep for name in records.table.columns}
    emptied = sum(int((empty[name] & filled[name]).sum()) for name in empty)
    check_target(path)
    write_atomic(path, _csv(records, np.flatnonzero(keep), empty))
    train = shlex.join(["linnaeus", "data=manifest", setting_text("data.path", str(path)), *settings(path, records, overrides)])
    return f"{path}: {counted(int((~keep).sum()), 'row')} left out, {counted(emptied, 'cell')} emptied\nnext: {train}"


def settings(path: Path, records: Inspected, overrides: Sequence[str]) -> list[str]:
    """Return the settings KEY=VALUE with which `data=manifest` reads the corrected manifest `path` as the source was read. `overrides`:
    settings with which the source was read."""
    root = _root(records)
    known = {f"data.{f.name}" for f in fields(ManifestConfig)} - {"data.path", "data.root"}
    texts = [text for text in overrides if text.partition("=")[0].partition("[")[0] in known or text.startswith("data.rank_columns.")]
    texts = [text for text in texts if text != "data.group_column=auto"]  # may be another column of a manifest
    given = {text.partition("=")[0] for text in texts}
    names = ("taxonomy", "taxon_column", "group_column")  # keys that the readers of some formats set
    read = {name: getattr(records.config, name) for name in names}
    texts += [setting_text(f"data.{name}", value) for name, value in read.items() if value is not None and f"data.{name}" not in given]
    if records.config.rank_columns and not any(name.startswith("data.rank_columns") for name in given):
        texts.append("data.rank_columns={" + ",".join(f"{rank}:{name}" for rank, name in records.config.rank_columns.items()) + "}")
    beside = not is_url(root) and Path(root).resolve() == path.parent.resolve()
    return texts if beside else [setting_text("data.root", redacted(root)), *texts]


def _root(records: Inspected) -> str:
    """Return the value of data.root with which a manifest reads the photographs of the source."""
    files, config = records.files, records.config
    if isinstance(files, FolderFiles | UrlFiles):
        return files.root
    if isinstance(files, ZipFiles):
        return f"zip://{files.inside.rstrip('/')}::{files.archive.resolve()}"
    return f"{config.name}:{os.path.abspath(os.path.expanduser(config.path))}"


def _filled(records: Inspected, name: str) -> np.ndarray:
    """Return bool [N], True where the cell of the column `name` is not empty."""
    column = records.table.columns[name]
    return np.array([value != "" for value in column.values], dtype=bool)[column.codes]


def _csv(records: Inspected, rows: np.ndarray, empty: dict[str, np.ndarray]) -> str:
    """Return the CSV of the rows (int64 [K]). `empty`: column -> bool [N], True for cells to leave empty. As in the source, cells are
    separated by semicolons if numbers have a decimal comma."""
    text = io.StringIO()
    table = csv.writer(text, delimiter=";" if records.table.decimal_comma else ",", lineterminator="\n")
    table.writerow(records.table.columns)
    for start in range(0, len(rows), CHUNK):
        chunk = rows[start : start + CHUNK]
        cells = []
        for name, column in records.table.columns.items():
            codes = np.where(empty[name][chunk], -1, column.codes[chunk]).tolist()
            cells.append(["" if code < 0 else column.values[code] for code in codes])
        table.writerows(zip(*cells, strict=True))
    return text.getvalue()
