"""Real archives, as other readers read them: `python-dwca-reader` for Darwin Core Archives and `camtrapdp` for Camtrap DP.

The libraries are not dependencies of linnaeus. Each test is skipped where its library or the data are missing:
`pip install python-dwca-reader camtrapdp`."""

from collections import Counter
from pathlib import Path

import pytest

from linnaeus.workloads.taxonomy.sources.camera_traps.data_package import open_package
from linnaeus.workloads.taxonomy.sources.darwin_core_archive import darwin_core
from linnaeus.workloads.taxonomy.sources.darwin_core_archive.archive_descriptor import read_descriptor
from linnaeus.workloads.taxonomy.sources.darwin_core_archive.archive_members import DESCRIPTOR, Archive
from linnaeus.workloads.taxonomy.sources.darwin_core_archive.archive_tables import KEY, read_rows

TABLES = Path(__file__).resolve().parents[5] / "shared/data/tables"
pytestmark = pytest.mark.skipif(not TABLES.is_dir(), reason="shared/data/tables is not there")
PLACES = [*(path.name for path in (TABLES / "dwca_samples").glob("*[!t]")), "../quercus_dwca"] if TABLES.is_dir() else []
REFUSED = {  # archives that python-dwca-reader 0.17.1 does not read
    "dwca-invalid-lacks-metadata": "the file of the metadata is missing",
    "dwca-malformed-descriptor": "a column beyond the end of the rows",
    "dwca-missing-extension-details": "an extension without a file",
    **dict.fromkeys(("dwca-invalid-simple-toomuch.zip", "dwca-invalid-simple-two.zip"), "two files without a descriptor"),
}


@pytest.mark.parametrize("name", sorted(PLACES))
def test_the_rows_and_terms_of_an_archive(name):
    """Number of rows of the core, the known cells of each of its terms, and the rows of each extension."""
    reader = pytest.importorskip("dwca.read").DwCAReader
    path = (TABLES / "dwca_samples" / name).resolve()
    archive = Archive(path)
    if name in REFUSED:  # `test_darwin_core_samples.py` has the records or the message of each
        with pytest.raises(Exception, match=r".+"), reader(str(path)) as theirs:
            list(theirs)
        return
    if not archive.has(DESCRIPTOR):
        return same_table(reader, path)
    with reader(str(path)) as theirs:
        rows = list(theirs)
        extended = Counter(row.rowtype.rpartition("/")[2] for one in rows for row in one.extensions)
        short = {term.rpartition("/")[2]: term for term in theirs.descriptor.core.terms}
    core, extensions = read_descriptor(archive)
    ours = read_rows(archive, core, core.terms())
    assert ours.size + sum(ours.left_out.values()) == len(rows)
    for term in core.terms():
        column = ours.columns[term]
        mine = Counter(column.values[code] for code in column.codes.tolist())
        other = Counter(row.data[short[term]].strip() for row in rows)
        assert mine == other, term
    for file in extensions:
        found = read_rows(archive, file, [])
        keys = {ours.columns[KEY].values[code] for code in ours.columns[KEY].codes.tolist()}
        linked = sum(found.columns[KEY].values[code] in keys for code in found.columns[KEY].codes.tolist())
        assert linked == extended[file.kind]


def same_table(reader, path):
    """Compare the cells of an archive that is a single table without a descriptor."""
    with reader(str(path)) as theirs:
        rows = list(theirs)
    archive, core, *_ = darwin_core._open(path)
    ours = read_rows(archive, core, core.terms())
    assert ours.size == len(rows) > 0 and not ours.left_out and {term.lower() for term in core.terms()} == set(rows[0].data)
    for term, column in ours.columns.items():
        if term != KEY:
            assert [column.values[code] for code in column.codes.tolist()] == [row.data[term.lower()].strip() for row in rows], term


@pytest.mark.parametrize(
    "name, columns",
    [
        ("deployments", ("deploymentID", "locationID")),
        ("media", ("mediaID", "deploymentID", "filePath")),
        ("observations", ("deploymentID", "scientificName", "eventID")),
    ],
)
def test_the_tables_of_a_camera_trap_package(name, columns):
    camtrapdp = pytest.importorskip("camtrapdp")
    kinds = {"deployments": camtrapdp.Deployment, "media": camtrapdp.Media, "observations": camtrapdp.Observation}
    theirs = kinds[name].from_csv(str(TABLES / "camtrap_dp" / f"{name}.csv"))
    ours = open_package(TABLES / "camtrap_dp").table(name, columns)
    assert len(ours) == len(theirs) > 0
    for column in columns:
        found = ours.columns[column]
        mine = [found.values[code] for code in found.codes.tolist()]
        assert mine == [getattr(row, column) or "" for row in theirs]
