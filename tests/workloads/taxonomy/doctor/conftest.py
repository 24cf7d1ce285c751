"""Make rows of a manifest from records of biota, write them, and find problems in them with the doctor."""

import csv

import numpy as np
import pytest

from linnaeus.workloads.taxonomy.biota.__main__ import _row, biota_config
from linnaeus.workloads.taxonomy.biota.biota_source import build_source
from linnaeus.workloads.taxonomy.doctor.at_sea import at_sea
from linnaeus.workloads.taxonomy.doctor.checks import CHECKS
from linnaeus.workloads.taxonomy.doctor.inspection import inspect
from tests import runs

HEADER = ("path", "order", "family", "genus", "species", "latitude", "longitude", "uncertainty", "date", "time", "elevation", "split")


@pytest.fixture(scope="session")
def biota_rows():
    """Return the 2,000 rows of a manifest of biota, as dicts."""
    source = build_source(biota_config(train=1600, validation=400))
    return [dict(zip(HEADER, _row(source, i), strict=True)) for i in range(len(source.ids))]


@pytest.fixture
def rows(biota_rows):
    """Return copies of the rows, which a test may change."""
    return [dict(row) for row in biota_rows]


def write_files(folder, paths):
    (folder / "images").mkdir(exist_ok=True)
    for path in paths:
        (folder / path).write_text(path)


@pytest.fixture(scope="session")
def biota_files(biota_rows, tmp_path_factory):
    """Return a folder with a small file for each photograph."""
    folder = tmp_path_factory.mktemp("files")
    write_files(folder, {row["path"] for row in biota_rows})
    return folder


@pytest.fixture
def inspected(biota_rows, biota_files, tmp_path):
    """Return a function that writes rows, and a small file for each photograph unless its name starts with `gone`, and inspects them."""
    original = {row["path"] for row in biota_rows}

    def make(rows, *settings):
        paths = {row["path"] for row in rows if not row["path"].startswith("gone")}
        images = tmp_path / "images"
        if images.is_symlink():
            images.unlink()
        if paths == original and not images.exists():
            images.symlink_to(biota_files / "images")
        else:
            write_files(tmp_path, paths)
        with (tmp_path / "manifest.csv").open("w", newline="") as file:
            table = csv.DictWriter(file, dict.fromkeys(name for row in rows for name in row), restval="")
            table.writeheader()
            table.writerows(rows)
        return inspect(runs.composed(["data=manifest", f"data.path={tmp_path / 'manifest.csv'}", *settings]).data)

    return make


def table_findings(records):
    """Return the findings of all checks of the table, except the check that needs a library which may not be installed."""
    return [finding for check in CHECKS if check is not at_sea for finding in check(records)]


def rows_of(findings, check):
    """Return the rows of the findings of a check, in order."""
    found = [finding.rows for finding in findings if finding.check == check]
    return np.sort(np.concatenate(found)).tolist() if found else []
