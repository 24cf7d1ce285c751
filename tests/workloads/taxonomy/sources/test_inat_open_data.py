"""`data=inat_open_data`: the tables with the downloaded photographs, what is left out, and tables that cannot be read."""

import dataclasses
import gzip
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.sources.inaturalist import inat_open_data
from tests.workloads.taxonomy.sources.conftest import same_as_manifest, source_of, trains

RANKS = ("order", "family", "genus", "species")
LEVEL = {"order": 40, "family": 30, "genus": 20, "species": 10}
PHOTOS = "photo_uuid photo_id observation_uuid observer_id extension license width height position"
OBSERVATIONS = "observation_uuid observer_id latitude longitude positional_accuracy taxon_id quality_grade observed_on anomaly_score"
GRADES = ("research", "needs_id", "casual")
BROKEN = gzip.compress(b"photo_id")[:10] + b"\xff" * 20  # a header, and no data of gzip
UNEVEN = "a different number of cells than the header"


class OpenData(NamedTuple):
    """Return the rows of the tables; `tables` has the lines without the header, which is the first."""

    folder: Path
    tables: dict[str, list[list[str]]]

    def write(self, *gzipped: str) -> "OpenData":
        for name, rows in self.tables.items():
            text = "\n".join("\t".join(row) for row in rows) + "\n"
            for suffix, content in ((".csv.gz", gzip.compress(text.encode())), (".csv", text.encode())):
                path = self.folder / f"{name}{suffix}"
                path.unlink(missing_ok=True)
                if (suffix == ".csv.gz") == (name in gzipped):
                    path.write_bytes(content)
        return self

    def photograph(self, number: int) -> list[str]:
        """Return the row of a photograph."""
        return next(row for row in self.tables["photos"] if row[1] == str(number))


def lineages(records) -> list[tuple[str, ...]]:
    return sorted({tuple(row[rank] for rank in RANKS[:depth]) for row in records.rows for depth in range(1, 5)})


def open_data(records, folder: Path) -> OpenData:
    """Write the records as observations 0 to N - 1, each with the photographs 100 + i in the size medium, which are downloaded, and the
    photograph 9000 + i of every fifth, which is not. Names contain quotes."""
    number = {lineage: str(i + 5) for i, lineage in enumerate(lineages(records))}
    taxa = [["taxon_id", "ancestry", "rank_level", "rank", "name", "active"], ["1", "", "100", "stateofmatter", 'Life "L', "true"]]
    for lineage, taxon in number.items():
        above = "/".join(["1", *(number[lineage[:depth]] for depth in range(1, len(lineage)))])
        rank = RANKS[len(lineage) - 1]
        taxa.append([taxon, above, str(LEVEL[rank]), rank, lineage[-1], "true"])
    photos, observations = [PHOTOS.split()], [OBSERVATIONS.split()]
    for i, row in enumerate(records.rows):
        target = folder / f"photos/{100 + i}/medium.jpg"
        target.parent.mkdir(parents=True)
        shutil.copy(records.folder / row["path"], target)
        photos.append([f"p-{i}", str(100 + i), f"o-{i}", str(i % 7), "jpg", "CC-BY", "24", "24", "0"])
        if i % 5 == 0:
            photos.append([f"q-{i}", str(9000 + i), f"o-{i}", str(i % 7), "png", "CC0", "24", "24", "1"])
        place = [row["latitude"], row["longitude"], row["uncertainty"]]
        taxon = number[tuple(row[rank] for rank in RANKS)]
        observations.append([f"o-{i}", str(i % 7), *place, taxon, GRADES[i % 3 if i % 4 == 0 else 0], row["date"], ""])
    observations.append(["o-none", "3", "", "", "", "5", "casual", "", ""])  # without a photograph
    return OpenData(folder, {"photos": photos, "observations": observations[:1] + observations[:0:-1], "taxa": taxa}).write(
        "photos", "observations", "taxa"
    )


@pytest.fixture
def data(records, tmp_path) -> OpenData:
    return open_data(records, tmp_path)


def given(data: OpenData, *keys: str) -> tuple[str, ...]:
    return "data=inat_open_data", f"data.path={data.folder}", *keys


def excluded(data: OpenData, *keys: str) -> dict[str, int]:
    """Return the account of a source, which sums to the rows of the table of photographs."""
    source = source_of(*given(data, *keys))
    assert len(source.ids) + sum(source.excluded.values()) == len(data.tables["photos"]) - 1
    return source.excluded


def not_downloaded(data: OpenData) -> int:
    return sum(row[1].startswith("9") for row in data.tables["photos"])


def test_tables_with_downloaded_photographs_are_the_manifest(records, data, tmp_path):
    taxon = {row[4]: row[0] for row in data.tables["taxa"]}
    rows = [
        {**row, "path": f"photos/{100 + i}/medium.jpg", "taxon_id": taxon[row["species"]], "observer_id": str(i % 7)}
        for i, row in enumerate(records.rows)
    ]
    manifest = dataclasses.replace(records, folder=tmp_path, rows=rows)
    columns = ("path", "taxon_id", "latitude", "longitude", "uncertainty", "date", "observer_id")
    keys = (f"data.taxonomy={data.folder / 'taxa.csv.gz'}", "data.taxon_column=taxon_id", "data.group_column=observer_id")
    manifest.write(tmp_path / "manifest.csv")
    source = same_as_manifest(manifest, *given(data, *keys), columns=columns)
    assert source.fingerprint == source_of(*given(data, "data.group_column=observer_id")).fingerprint
    assert source.excluded == {"photograph that was not downloaded": not_downloaded(data)}
    assert len(set(source_of(*given(data, "data.group_column=observation_uuid")).group)) == len(rows)
    assert trains(tmp_path, *given(data))["status"] == "finished"


def test_photographs_that_are_not_in_the_table_and_repeated_observations_are_counted(data):
    before = source_of(*given(data))
    for number in ("77", "78"):
        (data.folder / "photos" / number).mkdir()
        shutil.copy(data.folder / "photos/100/medium.jpg", data.folder / "photos" / number / "medium.jpg")
    rows = data.tables["observations"]
    taxon = OBSERVATIONS.split().index("taxon_id")
    other = next(row[taxon] for row in rows[1:] if row[taxon] != rows[3][taxon])
    rows += [[*rows[3][:taxon], other, *rows[3][taxon + 1 :]], list(rows[4])]
    data.write("photos", "observations", "taxa")
    source = source_of(*given(data))
    assert source.fingerprint == before.fingerprint
    assert source.excluded == before.excluded | {"folder of a photograph that is not in photos.csv.gz": 2}
    reason = "an observation that is in an earlier row, 1 of them with another taxon, such as "
    assert f"observations.csv.gz: 2 rows left out: {reason}{rows[3][0]}" in source.notes


def test_plain_tables_and_another_folder_of_photographs(data, tmp_path):
    found = source_of(*given(data))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "photos").rename(tmp_path / "elsewhere/photos")
    data.write()
    assert source_of(*given(data, f"data.root={tmp_path / 'elsewhere'}")).fingerprint == found.fingerprint


def test_research_grade_only(data):
    casual = sum(row[6] != "research" for row in data.tables["observations"][1:]) - 1
    reason = "photograph of an observation without research grade"
    assert excluded(data, "data.research_grade=true")[reason] == casual > 0
    assert any(note.startswith("quality grades: casual (") for note in source_of(*given(data)).notes)


def test_a_size_that_few_photographs_have(data, records):
    few = range(100, 140)
    for number in few:
        shutil.copy(data.folder / f"photos/{number}/medium.jpg", data.folder / f"photos/{number}/large.jpg")
    source = source_of(*given(data, "data.photo_size=large"))
    assert source.ids.tolist() == [f"photos/{number}/large.jpg" for number in few]
    assert source.excluded["photograph that was not downloaded"] == len(data.tables["photos"]) - 1 - len(few)
    with pytest.raises(ConfigError, match=r"data.photo_size: .* in the size original: photos/100 in .* contains large.jpg, medium"):
        source_of(*given(data, "data.photo_size=original"))


def test_every_row_of_photos_is_a_row_or_counted(data):
    photos, observations = data.tables["photos"], data.tables["observations"]
    photos.append(photos[1][:-1])
    photos.append([*data.photograph(110)[:2], "o-1", *photos[1][3:]])  # one photograph of two observations
    data.photograph(103)[2] = "o-gone"
    (data.folder / "photos/104/medium.jpg").unlink()
    (data.folder / "photos/105/medium.jpg").write_bytes(b"")
    taxon = {row[0]: row for row in observations}
    taxon["o-6"][5], taxon["o-7"][5] = "", "777"
    observations.append(taxon["o-8"][:3])
    observations.append([*taxon["o-9"][:5], "1", *taxon["o-9"][6:]])  # a second time, with another taxon
    data.write("photos")
    assert excluded(data, "data.max_bad_fraction=0.5") == {
        UNEVEN: 1,
        "photograph that was not downloaded": not_downloaded(data) + 1,
        "photograph whose observation is not in the table": 1,
        "image file empty": 1,
        "no 'taxon_id'": 1,
        "a 'taxon_id' that is not in the table of taxa ('777' (1 row))": 1,
    }
    notes = "\n".join(source_of(*given(data, "data.max_bad_fraction=0.5")).notes)
    assert "observations.csv: 1 row left out: a different number" in notes
    assert "photograph that occurs in an earlier row with another taxon: 1" in notes


def test_inactive_taxa_are_kept_and_counted(data):
    taxa = data.tables["taxa"]
    for row in taxa[-2:]:
        row[-1] = "false"
    data.write()
    rows = sum(row[5] in (taxa[-2][0], taxa[-1][0]) for row in data.tables["observations"])
    assert any(f"{rows} rows with a taxon that is not active any more" in note for note in source_of(*given(data)).notes)


def test_tables_larger_than_a_block_are_read_the_same(data, monkeypatch):
    whole = source_of(*given(data))
    monkeypatch.setattr(inat_open_data, "BLOCK", 1 << 10)
    assert source_of(*given(data)).fingerprint == whole.fingerprint
    data.tables["photos"][5][0] = "x" * 5000
    data.write()
    with pytest.raises(ConfigError, match=r"photos\.csv' cannot be read: ") as caught:
        source_of(*given(data))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda folder: (folder / "taxa.csv.gz").unlink(), "does not contain taxa.csv.gz or taxa.csv"),
        (lambda folder: (folder / "photos.csv.gz").unlink(), "does not contain photos.csv.gz"),
        (lambda folder: (folder / "photos.csv.gz").write_bytes(b"photo_id\t"), "photos.csv.gz' cannot be read: Not a gzipped file"),
        (lambda folder: (folder / "photos.csv.gz").write_bytes(BROKEN), "photos.csv.gz' cannot be read: Error -3 while decompressing"),
        (
            lambda folder: replace(folder / "photos.csv.gz", b"CC-BY", b"CC\t\xff"),
            "photos.csv.gz' cannot be read: 'utf-8' codec can't decode",
        ),
        (lambda folder: cut(folder / "photos.csv.gz"), "photos.csv.gz' cannot be read"),
        (lambda folder: cut(folder / "observations.csv.gz"), "observations.csv.gz' cannot be read"),
        (lambda folder: replace(folder / "photos.csv.gz", b"\t", b","), "photos.csv.gz' does not have a column photo_id; its columns are"),
        (lambda folder: replace(folder / "photos.csv.gz", b"photo_uuid", b"width"), "has two columns of one name"),
        (
            lambda folder: replace(folder / "observations.csv.gz", b"o-", b"obs-"),
            r"no photograph of .* whose observation is not in the table \(\d+\)",
        ),
        (lambda folder: replace(folder / "observations.csv.gz", b"\tresearch", b"\tneeds_id"), r"without research grade \(\d+\)"),
        (lambda folder: shutil.rmtree(folder / "photos"), "data.root: .*photos' cannot be read: No such file"),
        (lambda folder: (folder / "photos").rename(folder / "old") and (folder / "photos").mkdir(), "does not contain a folder of a photo"),
        (lambda folder: replace(folder / "photos.csv.gz", b"\t1", b"\t7"), "are not those of photographs in the table"),
    ],
)
def test_what_does_not_fit_is_one_line(data, damage, message):
    damage(data.folder)
    with pytest.raises(ConfigError, match=message) as caught:
        source_of(*given(data, "data.research_grade=true"))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 420


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-60])


def replace(path: Path, old: bytes, new: bytes) -> None:
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(old, new)))
