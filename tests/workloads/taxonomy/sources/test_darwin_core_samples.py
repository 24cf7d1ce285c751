"""Real Darwin Core Archives, broken ones included: the records and counts that one finds by reading their tables by hand."""

import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.manifest.clean_records import read_clean
from tests import runs

TABLES = Path(__file__).resolve().parents[5] / "shared/data/tables"
pytestmark = pytest.mark.skipif(not TABLES.is_dir(), reason="shared/data/tables is not there")

FISH = [("Tetraodontidae", "tetraodon fluviatilis"), ("Osphronemidae", "betta splendens")]
BIRDS = {
    "1": ("Struthionidae", "Struthio"),
    "2": ("Phasianidae", "Alectoris"),
    "3": ("Phasianidae", "Peliperdix"),
    "4": ("Phasianidae", "Dendroperdix"),
}
BOX = {id: ("Ostraciidae", "Lactoria cornuta") for id in ("699220990", "797373046", "1001654155")}
FISH_BY_ID = dict(zip(("3", "0"), FISH, strict=True))
QUOTED = FISH_BY_ID | {"1": ("Osphronemidae", ""), "2": ("Osphronemidae", "")}  # "betta" splendens: not a binomial
WITHOUT_IDS = "the first would be named by an id, but it has none"
SAMPLES = {
    **dict.fromkeys(("dwca-2extensions.zip", "dwca-ids.zip", "dwca-orphaned-rows.zip", "dwca-star-test-archive.zip"), BIRDS),
    "dwca-missing-extension-details": BIRDS,
    **dict.fromkeys(("dwca-csv-quote-dir", "dwca-nometadata.zip", "dwca-simple-subdir.zip", "dwca-simple-test-archive.tgz"), FISH_BY_ID),
    **dict.fromkeys(("dwca-metadata-windows1252-encoding", "dwca-simple-dir"), QUOTED),
    **dict.fromkeys((f"dwca-simple-csv{end}.zip" for end in ("", "-dos", "-eml", "-notenclosed")), BOX),
    **dict.fromkeys(("dwca-invalid-simple-toomuch.zip", "dwca-invalid-simple-two.zip"), BOX),
    "dwca-utf8-eol-test.zip": {"189433446": ("Tetraodontidae", "Tetraodon fluviatilis")},
    "dwca-malformed-descriptor": "no row of 'occurrence.txt' has the 235 cells of its header",
    **dict.fromkeys(("dwca-default-metadata-filename.zip", "dwca-invalid-lacks-metadata", "dwca-meta-default-values"), WITHOUT_IDS),
    **dict.fromkeys(("dwca-noheaders-1.zip", "dwca-noheaders-2.zip", "dwca-partial-default.zip", "dwca-test-default.zip"), WITHOUT_IDS),
    **dict.fromkeys(("dwca-simple-test-archive-enclosed.zip", "dwca-simple-test-archive.zip"), WITHOUT_IDS),
}
LARGE = ("gbif-results.zip", "gbif-results-lacks-s-metadata.zip", "gbif-results-whitespace-in-xml.zip")


def clean(path, root, *overrides):
    return read_clean(runs.composed(["data=darwin_core", f"data.path={path}", f"data.root={root}", "data.image_size=16", *overrides]).data)[
        0
    ]


def photographs(folder, ids):
    Image.new("RGB", (24, 24), "green").save(folder / "any.jpg")
    for id in ids:
        (folder / f"{id}.jpg").hardlink_to(folder / "any.jpg")
    (folder / "any.jpg").unlink()


def known(values):
    return int((~np.isnan(values)).sum())


def test_every_sample_is_in_the_table():
    names = {path.name for path in (TABLES / "dwca_samples").iterdir()} - {"description.rst"}
    assert names == {*SAMPLES, *LARGE}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_gives_the_right_records_or_one_line(name, tmp_path):
    expected, path = SAMPLES[name], TABLES / "dwca_samples" / name
    if isinstance(expected, str):
        with pytest.raises(ConfigError, match=r"^data\.") as caught:
            clean(path, tmp_path)
        assert expected in str(caught.value) and "\n" not in str(caught.value)
        return
    photographs(tmp_path, expected)
    rows = clean(path, tmp_path)
    by_id = {}
    for file, codes in zip(rows.files.names.tolist(), rows.labels.tolist(), strict=True):
        taxa = {
            rank: rows.tree.names[r][code] if code >= 0 else "" for r, (rank, code) in enumerate(zip(rows.tree.ranks, codes, strict=True))
        }
        by_id[file.removesuffix(".jpg")] = (taxa["family"], taxa.get("species", taxa["genus"]))
    assert by_id == expected and rows.excluded == {}


@pytest.mark.parametrize("name", LARGE)
def test_the_download_from_gbif_has_the_counts_of_its_table(name, tmp_path):
    with zipfile.ZipFile(TABLES / "dwca_samples" / name) as file:
        member = next(n for n in file.namelist() if n.endswith("occurrence.txt") and "MACOSX" not in n)
        lines = [line.split("\t") for line in file.read(member).decode().rstrip("\n").split("\n")]
    columns = list(zip(*lines, strict=True))
    places = [(a, b) for a, b in zip(columns[24], columns[25], strict=True) if a and b and (float(a), float(b)) != (0, 0)]
    dates = [row for row in zip(columns[28], columns[26], columns[27], strict=True) if row[0] or all(row[1:])]  # with year and month
    elevations = [row for row in zip(columns[45], columns[29], strict=True) if any(row)]
    assert (len(lines), len(places), len(dates), len(elevations)) == (158, 49, 46, 1)
    photographs(tmp_path, columns[0])
    rows = clean(TABLES / "dwca_samples" / name, tmp_path)
    assert rows.files.names.tolist() == [f"{id}.jpg" for id in columns[0]] and rows.excluded == {}
    assert list(rows.tree.names[-1]) == ["Tetraodon fluviatilis"]
    found = rows.metadata
    assert (known(found.latitude), known(found.day), known(found.elevation)) == (len(places), len(dates), len(elevations))
    np.testing.assert_array_equal(found.latitude[~np.isnan(found.latitude)], np.array([p[0] for p in places], dtype=np.float32))


def test_the_oaks_have_the_counts_of_their_table(tmp_path):
    folder = TABLES / "quercus_dwca"
    header, *lines = [line.rstrip("\n").split("\t") for line in (folder / "occurrence.txt").open(encoding="utf-8", newline="")]
    cells = {name: [line[i] for line in lines] for i, name in enumerate(header)}
    latitudes = [float(text) for text in cells["decimalLatitude"] if text]
    whole = [text for text in cells["eventDate"] if len(text) == 10]
    months = [text for text in cells["eventDate"] if len(text) == 7]
    days = {"1906-07-25/1906-08-05", "1847-09-14/17", "1928-02-14/27", "1897-09-15/17"}  # the other intervals are longer than a month
    elevations = [float(text) for text in cells["minimumElevationInMeters"]]
    assert (len(lines), len(latitudes), sum(map(bool, cells["eventDate"]))) == (555, 458, 319)
    photographs(tmp_path, cells["id"])
    rows = clean(folder, tmp_path, "data.elevation_missing=0")
    assert rows.files.names.tolist() == [f"{id}.jpg" for id in cells["id"]] and rows.excluded == {}
    found = rows.metadata
    assert known(found.latitude) == known(found.longitude) == 458
    assert found.latitude[~np.isnan(found.latitude)].tolist() == np.array(latitudes, dtype=np.float32).tolist()
    assert known(found.elevation) == sum(value != 0 for value in elevations) == 179
    assert known(found.day) == 281 and known(found.hour) == 0
    notes = " ".join(rows.notes)
    assert "interval longer than a month, set to missing: 7" in notes and "no month, set to missing: 31" in notes
    assert 281 + 7 + 31 == 319 and len(whole) + sum(text in days for text in cells["eventDate"]) == 208 and len(months) == 281 - 208
    species = [f"{genus} {epithet}" for genus, epithet in zip(cells["genus"], cells["specificEpithet"], strict=True)]
    assert [rows.tree.names[-1][code] for code in rows.labels[:, -1]] == species
    kept = clean(folder, tmp_path)
    assert known(kept.metadata.elevation) == 555
    assert any("elevation of exactly 0, kept (data.elevation_missing=0 sets it to missing): 376 of 555" in note for note in kept.notes)


def test_the_tar_archive_has_the_members_of_its_list():
    with tarfile.open(TABLES / "dwca_samples/dwca-simple-test-archive.tgz") as file:
        assert [name for name in file.getnames() if "/._" not in name] == ["eml.xml", "meta.xml", "occurrence.txt"]
