"""`data=camtrap_dp`: observations of photographs and events, taxa, times, types and methods; the forms that packages have."""

import csv
import gzip
import io
import json
import pickle
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.images.image_files import EMPTY, MISSING, NOT_A_FILE
from linnaeus.workloads.taxonomy.images.integrity import NotAnImage
from linnaeus.workloads.taxonomy.sources.folders.zip_files import ZipFiles
from tests.workloads.taxonomy.sources.conftest import same_as_manifest, source_of, trains

EXAMPLE = Path(__file__).resolve().parents[5] / "shared/data/tables/camtrap_dp"
CARRIED = ("path", "order", "family", "genus", "species", "latitude", "longitude", "uncertainty", "date", "time")
TAXA = [
    {"scientificName": "Vulpes vulpes", "taxonRank": "species", "family": "Canidae", "order": "Carnivora"},
    {"scientificName": "Meles meles", "taxonRank": "species", "family": "Mustelidae", "order": "Carnivora"},
    {"scientificName": "Ardea", "taxonRank": "genus", "family": "Ardeidae", "order": "Pelecaniformes"},
]
OTHER = "are others, or in another order, in"
FOX, BADGER, HERON = "Vulpes vulpes", "Meles meles", "Ardea cinerea"


def csv_of(rows):
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), restval="")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def write_package(folder, deployments, media, observations, taxonomic=TAXA, resources=None):
    """Write a package. `resources`: name of a table -> its description in place of a path."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = []
    for name, rows in (("deployments", deployments), ("media", media), ("observations", observations)):
        (folder / f"{name}.csv").write_text(csv_of(rows))
        listed.append({"name": name} | (resources or {}).get(name, {"path": f"{name}.csv"}))
    (folder / "datapackage.json").write_text(json.dumps({"resources": listed, "taxonomic": taxonomic}))
    return f"data.path={folder}"


def clock(minutes, zone="+02:00"):
    return f"2021-07-{1 + minutes // 1440:02d}T{minutes // 60 % 24:02d}:{minutes % 60:02d}:00{zone}"


def photograph(folder, name, minutes=0, camera="a", **cells):
    """Write a photograph, and return its row of media."""
    path = folder / f"{name}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (16, 16), (sum(map(ord, name)) % 256, len(name), minutes % 256)).save(path)
    row = {"mediaID": name, "deploymentID": camera, "timestamp": clock(minutes), "filePath": f"{name}.jpg", "fileMediatype": "image/jpeg"}
    return row | cells


def seen(name, media=None, window=(0, 0), camera="a", kind="animal", **cells):
    """Return a row of observations, of a photograph or of a window of minutes."""
    level = {"mediaID": media, "observationLevel": "media"} if media else {"observationLevel": "event"}
    times = {"eventStart": clock(window[0]), "eventEnd": clock(window[1])}
    return {"deploymentID": camera, **times, **level, "observationType": kind, "scientificName": name} | cells


class Trap:
    """A package with many photographs of foxes, badgers and herons beside those of a test, which are named t0, t1, ..."""

    def __init__(self, folder):
        self.folder = folder
        self.deployments = [{"deploymentID": name, "latitude": "50.5", "longitude": "4.5"} for name in "abz"]
        self.media = [photograph(folder, f"z{i}", i, "z") for i in range(30)]
        self.observations = [seen((FOX, BADGER, HERON)[i % 3], f"z{i}", camera="z") for i in range(30)]
        self.resources = {}

    def add(self, count, camera="a"):
        self.media += [photograph(self.folder, f"t{i}", 10 * i, camera) for i in range(count)]

    def source(self, *keys, taxonomic=TAXA):
        path = write_package(self.folder, self.deployments, self.media, self.observations, taxonomic, self.resources)
        source = source_of("data=camtrap_dp", path, *keys)
        assert len(source.ids) + sum(source.excluded.values()) == len(self.media)
        return source

    def found(self, *keys, rank="species", **options):
        """Return the taxon of each photograph of the test that has a label, and the reasons of the others."""
        source = self.source(*keys, **options)
        column = source.tree.ranks.index(rank)
        taxa = [source.tree.names[column][label] if label >= 0 else "" for label in source.labels[:, column]]
        return {path[:-4]: taxon for path, taxon in zip(source.ids, taxa, strict=True) if path.startswith("t")}, source.excluded


@pytest.fixture
def trap(tmp_path):
    return Trap(tmp_path / "package")


def biota_package(records, folder):
    """Write the records as a package with a deployment for each photograph."""
    deployments, media, observations = [], [], []
    for i, row in enumerate(records.rows):
        known = {"latitude": row["latitude"] or "NA", "longitude": row["longitude"] or "NaN", "coordinateUncertainty": row["uncertainty"]}
        deployments.append({"deploymentID": f"d{i}", **known, "timestampIssues": "false" if row["date"] else "true"})
        when = f"{row['date'] or '2000-01-01'}T{row['time'] or '00:00:00'}+01:00"
        media.append(
            {"mediaID": f"m{i}", "deploymentID": f"d{i}", "timestamp": when, "filePath": row["path"], "fileMediatype": "image/jpeg"}
        )
        observations.append(seen(row["species"], f"m{i}" if i % 2 else None, camera=f"d{i}") | {"eventStart": when, "eventEnd": when})
    names = {row["species"]: row for row in records.rows}
    taxa = [
        {"scientificName": name, "taxonRank": "species", **{r: row[r] for r in ("order", "family", "genus")}} for name, row in names.items()
    ]
    return write_package(folder, deployments, media, observations, taxa)


def test_the_records_of_a_package_are_those_of_the_manifest(records, tmp_path):
    given = ("data=camtrap_dp", biota_package(records, tmp_path), f"data.root={records.folder}")
    source = same_as_manifest(records, *given, columns=CARRIED)
    assert not np.isnan(source.metadata.hour).all()
    assert trains(tmp_path / "runs", *given)["status"] == "finished"


def test_a_zip_with_its_photographs_is_the_manifest(records, tmp_path):
    biota_package(records, tmp_path)
    with zipfile.ZipFile(tmp_path / "trap.zip", "w") as archive:
        for file in tmp_path.glob("*.*"):
            if file.suffix in (".csv", ".json"):
                archive.write(file, f"top/{file.name}")
        for row in records.rows:
            archive.write(records.folder / row["path"], f"top/{row['path']}")
    same_as_manifest(records, "data=camtrap_dp", f"data.path={tmp_path / 'trap.zip'}", columns=CARRIED)


def test_members_of_an_archive_as_photographs(tmp_path):
    image = io.BytesIO()
    Image.new("RGB", (9, 9), "green").save(image, "JPEG")
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in (("in/a b.jpg", image.getvalue()), ("in/0.jpg", b""), ("in/deep/", b""), ("in/bad.jpg", bytes(range(256)))):
            archive.writestr(name, data)
    data = bytearray((tmp_path / "a.zip").read_bytes())
    data[data.index(b"in/bad.jpg") + 20] ^= 255
    (tmp_path / "a.zip").write_bytes(data)
    files = ZipFiles(tmp_path / "a.zip", ["a b.jpg", "0.jpg", "deep", "none.jpg", "./bad.jpg"], "in/")
    assert files.sizes().tolist() == [len(image.getvalue()), EMPTY, MISSING, MISSING, 256]
    assert pickle.loads(pickle.dumps(files)).take(np.array([1, 0])).read(1) == image.getvalue()
    with pytest.raises(NotAnImage, match="damaged in the archive"):
        files.read(4)
    assert ZipFiles(tmp_path / "a.zip", ["deep/"], "in/").sizes().tolist() in ([NOT_A_FILE], [MISSING])


def test_events_are_windows_of_a_deployment_and_overlap(trap):
    trap.add(6)  # minutes 0, 10, ... 50
    trap.observations += [
        seen(FOX, window=(0, 20), eventID="e1"),
        seen(FOX, window=(10, 10)) | {"eventStart": "2021-06-30T22:05:00Z", "eventEnd": "2021-06-30T22:15:00Z"},
        seen(BADGER, window=(20, 30)),
        seen(HERON, window=(0, 300), camera="b"),
        seen(HERON, window=(50, 40)),
        seen(HERON, window=(41, 49)),
    ]
    labels, excluded = trap.found()
    assert labels == {"t0": FOX, "t1": FOX, "t3": BADGER}
    assert excluded == {"medium with observations of several taxa or types": 1, "medium without an observation": 2}
    assert "3 event-level observations without any of the media" in trap.source().notes


def test_times_without_a_zone_are_compared_only_with_others_without(trap):
    trap.add(2)
    trap.observations += [seen(FOX, window=(0, 0)), seen(BADGER, window=(10, 10))]
    trap.media[-1]["timestamp"] = clock(10, "")
    assert trap.found() == ({"t0": FOX}, {"medium without an observation": 1})
    assert "times of media and observations without a zone, while others have one: 1, not compared with events" in trap.source().notes
    for row in (*trap.media, *trap.observations):
        row |= {name: row[name][:19] for name in ("timestamp", "eventStart", "eventEnd") if name in row}
    assert trap.found() == ({"t0": FOX, "t1": BADGER}, {})
    trap.observations.append(seen(HERON) | {"eventStart": "", "eventEnd": "unknown"})  # these cells are no times of a zone
    assert trap.found() == ({"t0": FOX, "t1": BADGER}, {})


def test_a_space_in_place_of_the_t_of_a_timestamp(trap):
    trap.add(2)
    trap.observations += [seen(FOX, "t0"), seen(BADGER, "t1")]
    before = trap.source().metadata
    assert not np.isnan(before.hour).any()
    for row in trap.media:
        row["timestamp"] = row["timestamp"].replace("T", " ")
    after = trap.source().metadata
    assert np.array_equal(before.hour, after.hour) and np.array_equal(before.day, after.day)


def test_the_level_of_observations_is_chosen(trap):
    trap.add(3)
    trap.observations += [seen(FOX, window=(0, 10)), seen(BADGER, "t1"), seen(HERON, "t2"), seen(HERON, "elsewhere")]
    auto = trap.source()
    assert trap.found()[0] == {"t0": FOX, "t1": BADGER, "t2": HERON}
    assert "labels of 32 media from media-level observations by people" in auto.notes
    assert "labels of 1 medium from event-level observations by people" in auto.notes
    labels, excluded = trap.found("data.observation_level=media")
    assert labels == {"t1": BADGER, "t2": HERON}
    assert excluded == {"medium without an observation at data.observation_level=media": 1}
    trap.observations += [seen((FOX, BADGER)[i // 15], window=(0, 14) if i < 15 else (15, 29), camera="z") for i in (0, 29)]
    labels, excluded = trap.found("data.observation_level=event")
    assert labels == {"t0": FOX, "t1": FOX}
    assert excluded == {"medium without an observation at data.observation_level=event": 1}


def test_an_event_by_a_person_is_preferred_to_a_photograph_by_a_machine(trap):
    trap.add(4)
    machine = {"classificationMethod": "machine", "classificationProbability": "0.9"}
    trap.observations += [seen(FOX, f"t{i}", **machine) for i in range(3)]
    trap.observations += [seen(BADGER, window=(0, 10)), seen(BADGER, "t0"), seen(HERON, window=(20, 30), **machine)]
    assert trap.found()[0] == {"t0": BADGER, "t1": BADGER, "t2": FOX, "t3": HERON}
    assert trap.found("data.observation_level=media")[0] == {"t0": BADGER, "t1": FOX, "t2": FOX}


def test_people_are_preferred_to_machines_and_improbable_classifications_are_left_out(trap):
    trap.add(5)
    machine = {"classificationMethod": "machine"}
    trap.observations += [
        seen(FOX, "t0", classificationMethod="human"),
        seen(BADGER, "t0", **machine, classificationProbability="0.99"),
        seen(FOX, "t1", **machine, classificationProbability="0.9"),
        seen(FOX, "t2", **machine, classificationProbability="0.4"),
        seen(BADGER, "t2", **machine, classificationProbability="0.8"),
        seen(FOX, "t3", **machine, classificationProbability="NaN"),
        seen(FOX, "t4", **machine, classificationProbability="0.1"),
        seen(HERON, window=(40, 40)),
    ]
    labels, excluded = trap.found()
    assert labels == {"t0": FOX, "t1": FOX, "t3": FOX, "t4": HERON} and list(excluded.values()) == [1]
    assert "6 observations classified by machines, probabilities 0.1 to 0.99" in trap.source().notes
    labels, excluded = trap.found("data.min_probability=0.8")
    assert labels == {"t0": FOX, "t1": FOX, "t2": BADGER, "t4": HERON}
    assert excluded == {"medium with machine classifications below data.min_probability only": 1}


def test_types_of_observations(trap):
    trap.add(8)
    kinds = ("human", "vehicle", "blank", "unknown", "unclassified", "NA")
    trap.observations += [seen("", f"t{i}", kind=kind) for i, kind in enumerate(kinds)]
    trap.observations += [
        seen("nan", "t6"),
        seen("NA", "t7"),
        seen(FOX, "t7"),
        seen("", "t7", kind="unclassified"),
        seen(FOX, "t7", bboxX="0.5"),
    ]
    labels, excluded = trap.found()
    assert labels == {"t7": FOX}
    assert excluded == {
        **{f"medium of observationType {kind}": 1 for kind in kinds[:4]},
        "medium of an animal without a scientificName": 1,
        "medium that is unclassified": 2,
    }
    assert "1 observation with a bounding box; boxes are not used, photographs are read whole" in trap.source().notes
    trap.observations += [seen("", f"t{i}", kind="blank") for i in (4, 5)] + [seen("", "t6", kind="Setup")]
    assert trap.found()[1]["medium of observationType that Camtrap DP does not have"] == 1
    labels, _ = trap.found("data.observation_types=[animal,blank]")
    assert labels == {"t7": FOX, "t2": "blank", "t4": "blank", "t5": "blank"}
    with pytest.raises(ConfigError, match=r"data\.observation_types"):
        trap.source("data.observation_types=[unknown]")


def test_ranks_are_those_of_the_package(trap):
    trap.add(7)
    names = ("Ardea", "ardea sp.", "Carnivora", "Lutra lutra (Linnaeus, 1758)", "Felis silvestris catus", "Bos cf. taurus", "Aves")
    trap.observations += [seen(name, f"t{i}") for i, name in enumerate(names)]
    taxonomic = [*TAXA, {"scientificName": "Aves", "taxonRank": "unranked"}, {"scientificName": None}, 7]
    keys = ("data.ranks=[order,family,genus,species]", "data.split_seed=3", "data.validation_fraction=0.1")
    by_rank = {rank: trap.found(*keys, rank=rank, taxonomic=taxonomic) for rank in ("order", "family", "genus", "species")}
    assert {name: tuple(by_rank[rank][0][name] for rank in by_rank) for name in by_rank["order"][0]} == {
        "t0": ("Pelecaniformes", "Ardeidae", "Ardea", ""),
        "t1": ("Pelecaniformes", "Ardeidae", "Ardea", ""),
        "t2": ("Carnivora", "", "", ""),
        "t3": ("", "", "Lutra", "Lutra lutra"),
        "t4": ("", "", "Felis", "Felis silvestris"),
    }
    reason = "medium of a name whose rank is neither in `taxonomic` of the package nor known from others ('Bos cf. taurus', 'Aves')"
    assert by_rank["order"][1] == {reason: 2}


def test_dates_and_places_are_those_of_the_deployment(trap):
    trap.deployments = [
        {
            "deploymentID": "a",
            "latitude": "1.5",
            "longitude": "2.5",
            "coordinateUncertainty": "30",
            "locationID": "l1",
            "timestampIssues": "TRUE",
        },
        {
            "deploymentID": "z",
            "latitude": "NaN",
            "longitude": "NA",
            "coordinateUncertainty": "nan",
            "locationID": "NA",
            "timestampIssues": "false",
        },
    ]
    trap.add(1)
    trap.media += [
        photograph(trap.folder, "t1", 30, "unlisted"),
        photograph(trap.folder, "t2", 30, "z", timestamp="2021-07-01T05:45:00-03:00"),
    ]
    trap.observations += [seen(FOX, "t0"), seen(FOX, "t1"), seen(FOX, "t2")]
    source = trap.source("data.time_column=time", "data.group_column=locationID")
    place = {path: i for i, path in enumerate(source.ids)}
    rows = [place[f"t{i}.jpg"] for i in range(3)]
    np.testing.assert_array_equal(source.metadata.latitude[rows], [1.5, np.nan, np.nan])
    np.testing.assert_array_equal(source.metadata.uncertainty[rows], [30, np.nan, np.nan])
    np.testing.assert_array_equal(source.metadata.hour[rows], [np.nan, 0.5, 5.75])
    np.testing.assert_allclose(source.metadata.day[rows], [np.nan, 181 / 365, 181 / 365], rtol=1e-6)
    assert "1 photograph of deployments with timestampIssues: dates and times are not used" in source.notes
    assert "1 photograph with a deploymentID that is not in deployments, so without coordinates" in source.notes
    assert any("data.group_column=locationID keeps them" in note for note in trap.source().notes)


def test_media_that_are_not_photographs_are_counted(trap):
    trap.media += [
        photograph(trap.folder, f"t{i}", **cells) for i, cells in enumerate(({"fileMediatype": "video/mp4"}, {"filePath": "NA"}))
    ]
    trap.media += [
        photograph(trap.folder, "t2"),
        photograph(trap.folder, "t2", filePath="t1.jpg"),
        photograph(trap.folder, "t3", fileMediatype=""),
    ]
    trap.observations += [seen(FOX, f"t{i}") for i in range(4)]
    labels, excluded = trap.found()
    assert labels == {"t3": FOX}
    assert excluded == {
        "medium that is not an image (video/mp4)": 1,
        "medium without a filePath": 1,
        "medium with the mediaID of another row": 2,
    }


def test_a_table_may_be_in_several_files_compressed_or_inline(trap):
    trap.add(2)
    trap.observations += [seen(FOX, "t0"), seen(BADGER, "t1")]
    expected = trap.source().fingerprint
    header, *lines = csv_of(trap.media).splitlines(keepends=True)
    parts = {"1.csv": header + "".join(lines[:9]), "2.csv": header + "".join(lines[9:20]).rstrip(), "3.csv.gz": "".join(lines[20:])}
    for name, text in parts.items():
        (trap.folder / name).write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    (trap.folder / "o.csv.gz").write_bytes(gzip.compress(csv_of(trap.observations).replace(",unclassified,", ",-,").encode()))
    trap.resources = {
        "deployments": {"data": [{**row, "latitude": 50.5, "timestampIssues": None} for row in trap.deployments]},
        "media": {"path": list(parts)},
        "observations": {"path": "o.csv.gz", "schema": {"missingValues": ["", "-"]}},
    }
    assert trap.source().fingerprint == expected
    columns = list(trap.deployments[0])
    trap.resources["deployments"] = {"data": [columns, *([row[name] for name in columns] for row in trap.deployments)]}
    assert trap.source().fingerprint == expected
    trap.resources["deployments"] = {"data": csv_of(trap.deployments)}
    assert trap.source().fingerprint == expected


def test_a_least_probability_without_machines_is_reported(trap):
    notes = trap.source("data.min_probability=0.5").notes
    assert "data.min_probability=0.5 has no effect: no observation is classified by a machine" in notes
    trap.observations[0] |= {"classificationMethod": "machine", "classificationProbability": "0.9"}
    assert not any("has no effect" in note for note in trap.source("data.min_probability=0.5").notes)


def test_names_of_downloaded_files_have_no_effect_without_urls(trap):
    with pytest.raises(ConfigError, match=r"data\.photo_names=id has no effect, because no photograph has a URL; leave it out"):
        trap.source("data.photo_names=id")


def test_photographs_with_urls_are_found_by_url_id_or_name(trap):
    for number, row in enumerate(trap.media):
        row["filePath"] = f"https://a.org/{row['mediaID']}/file"
        row["fileName"] = "IMG_1.JPG" if number < 2 else f"IMG_{number}.JPG"
    assert len(trap.source().ids) == 30
    for number in range(30):
        (trap.folder / f"z{number}.jpg").rename(trap.folder / f"IMG_{number}.JPG")
    source = trap.source()
    assert sorted(source.ids) == sorted(f"IMG_{number}.JPG" for number in range(2, 30))
    assert source.excluded == {"photograph without a file (not downloaded)": 2}
    with pytest.raises(ConfigError, match=r"data\.root: not one of 30 photographs has a file"):
        trap.source("data.photo_names=path")


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({"media": {"path": "https://a.org/media.csv"}}, "media is at 'https://a.org/media.csv'; download it"),
        ({"media": {"path": "../media.csv"}}, "must be the path of a CSV below the folder"),
        ({"media": {"path": "none.csv"}}, "the file 'none.csv' does not exist"),
        ({"media": {"path": []}}, "media has an empty list of paths"),
        ({"media": {}}, "the path of media is None"),
        (
            {"media": {"name": "pictures", "path": "media.csv"}},
            "has 0 resources named media, but it must have one; it has deployments, pictures",
        ),
        ({"media": {"path": "deployments.csv"}}, "media lacks the required columns mediaID, timestamp, filePath"),
        ({"media": {"path": "media.csv", "dialect": {"delimiter": "|"}}}, r"the delimiter '\|' of media is not read"),
        ({"media": {"data": {"a": 1}}}, "the data of media in datapackage.json must be a list"),
        ({"observations": {"path": ["observations.csv", "turned.csv"]}}, f"the columns of observations {OTHER} 'turned.csv'"),
        (
            {"observations": {"path": ["semicolons.csv", "turned semicolons.csv"]}},
            f"the columns of observations {OTHER} 'turned semicolons.csv'",
        ),
        ({"observations": {"path": ["observations.csv", "renamed.csv"]}}, f"the columns of observations {OTHER} 'renamed.csv'"),
        ({"deployments": {"path": ["deployments.csv", "deployments.csv"]}}, "6 rows of deployments with the deploymentID of another row"),
    ],
)
def test_a_package_that_cannot_be_read_is_one_line(trap, resources, message):
    header = csv_of(trap.observations).splitlines()[0]
    turned = ",".join(reversed(header.split(",")))
    renamed = header.replace("scientificName", "name")
    for name, line in (("turned", turned), ("semicolons", header), ("turned semicolons", turned), ("renamed", renamed)):
        (trap.folder / f"{name}.csv").write_text(line.replace(",", ";") if "semicolons" in name else line)
    trap.resources = resources
    with pytest.raises(ConfigError, match=f"data.path: .*{message}") as caught:
        trap.source()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 450


def test_a_path_that_is_not_a_package_is_one_line(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"PK\3\4nothing")
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("datapackage.json", b" " * (1 << 25))
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("a/datapackage.json", "{}")
        archive.writestr("b/datapackage.json", "{}")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "list.json").write_text("[]")
    cases = {
        "none": "does not exist",
        "": "the file 'datapackage.json' does not exist",
        "a.zip": "is neither a folder, a .json file nor a zip",
    }
    cases |= {
        "bomb.zip": "is compressed",
        "two.zip": "contains 2 packages",
        "deep.json": "cannot be read as JSON",
        "list.json": "list of resources",
    }
    for name, message in cases.items():
        with pytest.raises(ConfigError, match=f"data.path: .*{message}"):
            source_of("data=camtrap_dp", f"data.path={tmp_path / name}")


@pytest.mark.skipif(not EXAMPLE.exists(), reason="the real example, ../shared/data/tables/camtrap_dp, is not there")
def test_the_published_example_has_the_counts_found_by_hand(tmp_path):
    media, observations = (list(csv.DictReader((EXAMPLE / f"{name}.csv").open(newline=""))) for name in ("media", "observations"))
    for place, row in enumerate(media):
        Image.new("RGB", (16, 16), (place % 256, place // 256, 0)).save(tmp_path / f"{row['mediaID']}.jpg")  # filePath is a URL
    of_media = {row["mediaID"]: set() for row in media}
    for row in observations:
        if row["observationLevel"] == "media":
            of_media[row["mediaID"]].add((row["observationType"], row["scientificName"]))
    single = Counter(next(iter(labels)) for labels in of_media.values() if len(labels) == 1)
    species = Counter({name: n for (kind, name), n in single.items() if kind == "animal" and " " in name})
    assert species.total() == 176 and len(species) == 6 and single["animal", "Ardea"] == 20 and single["animal", "Aves"] == 11
    source = source_of("data=camtrap_dp", f"data.path={EXAMPLE}", f"data.root={tmp_path}", "data.split_seed=1")
    assert Counter(source.tree.names[1][label] for label in source.labels[:, 1] if label >= 0) == species
    assert len(source.ids) == 196 and not np.isnan(source.metadata.latitude).any() and not np.isnan(source.metadata.hour).any()
    local = {
        f"{row['mediaID']}.jpg": int(row["timestamp"][11:13]) + int(row["timestamp"][14:16]) / 60 + int(row["timestamp"][17:19]) / 3600
        for row in media
    }
    np.testing.assert_allclose(source.metadata.hour, [local[path] for path in source.ids], rtol=1e-6)
    types = {f"medium of observationType {kind}": n for (kind, _), n in single.items() if kind != "animal"}
    several = sum(len(labels) > 1 for labels in of_media.values())
    assert source.excluded == types | {"medium with observations of several taxa or types": several, "no label at the predicted ranks": 11}
    assert sum(source.excluded.values()) + len(source.ids) == len(media) == 423
    assert (
        "549 observations: 513 media-level, 36 event-level; 366 animal, 115 blank, 33 human, 21 vehicle, 13 unknown, 1 unclassified"
        in source.notes
    )
