"""`data=inat_competition`: the files of 2017, 2018, 2019 and 2021, what is left out, and files that cannot be read."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.manifest import build_source
from linnaeus.workloads.taxonomy.sources.inaturalist import json_stream
from tests import runs
from tests.workloads.taxonomy.sources.conftest import SMALL, same_as_manifest, source_of, trains

RANKS = ("order", "family", "genus", "species")
COLUMNS = ("path", *RANKS, "latitude", "longitude", "uncertainty", "date", "split")
FIELDS = {"latitude": float, "longitude": float, "uncertainty": float, "date": str}


def categories_of(records) -> list[dict]:
    lineages = sorted({tuple(row[rank] for rank in RANKS) for row in records.rows})
    return [{"id": i, **dict(zip((*RANKS[:3], "name"), line, strict=True))} for i, line in enumerate(lineages)]


def competition_of(records, split: str | None) -> dict:
    """Return the JSON of the rows of a split (None: of all) in the form of 2021."""
    categories = categories_of(records)
    number = {category["name"]: category["id"] for category in categories}
    rows = [row for row in records.rows if split in (None, row["split"])]
    images = [
        {"id": 10 * i + 3, "width": 24, "height": 24, "file_name": row["path"], "license": 0, "rights_holder": f"Ann {i % 9}"}
        | {name: FIELDS[column](row[column]) if row[column] else None for name, column in NAMES_2021.items()}
        for i, row in enumerate(rows)
    ]
    labels = [{"id": i, "image_id": 10 * i + 3, "category_id": number[row["species"]]} for i, row in enumerate(rows)]
    return {"info": {"year": 2021}, "images": images, "categories": categories, "annotations": labels[::-1], "licenses": []}


NAMES_2021 = {"latitude": "latitude", "longitude": "longitude", "location_uncertainty": "uncertainty", "date": "date"}
NAMES_2018 = {"lat": "latitude", "lon": "longitude", "loc_uncert": "uncertainty", "date": "date"}


def dump(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=None if len(path.name) % 2 else 1))
    return path


def in_order(records):
    """Return the records with the training rows first, as the files of a competition have them."""
    return dataclasses.replace(records, rows=sorted(records.rows, key=lambda row: row["split"]))


def test_files_of_2021_are_the_manifest(records, tmp_path):
    for split in ("train", "val"):
        dump(tmp_path / f"{split}.json", competition_of(records, split))
    given = ("data=inat_competition", f"data.path={tmp_path}", f"data.root={records.folder}")
    source = same_as_manifest(in_order(records), *given, columns=COLUMNS)
    assert any("'rights_holder' may be a group" in note for note in source.notes)
    assert any(note.startswith("train.json: ") for note in source.notes)
    assert trains(tmp_path, *given)["status"] == "finished"


def test_files_of_2018_have_locations_and_names_beside_them(records, tmp_path):
    shown = {category["name"]: category for category in categories_of(records)}
    for split in ("train", "val"):
        content = competition_of(records, split)
        rows = [row for row in records.rows if row["split"] == split]
        located = [
            {"id": image["id"], "user_id": i % 5, "valid": True, "date_c": 0.3}
            | {name: row[column] or None for name, column in NAMES_2018.items()}
            for i, (image, row) in enumerate(zip(content["images"], rows, strict=True))
        ]
        for image in content["images"]:
            for name in NAMES_2021:
                del image[name]
        content["categories"] = [{**c, "name": f"{c['id'] + 5000}", "supercategory": "Aves"} for c in content["categories"]]
        dump(tmp_path / f"{split}2018.json", content)
        dump(tmp_path / f"inat2018_locations/{split}2018_locations.json", located[::-1])
    dump(tmp_path / "categories.json", [*shown.values()])
    given = ("data=inat_competition", f"data.path={tmp_path / 'train2018.json'}", f"data.root={records.folder}")
    same_as_manifest(in_order(records), *given, columns=COLUMNS)
    assert len(set(source_of(*given, "data.group_column=user_id", "data.split_column=null").group)) == 5
    (tmp_path / "categories.json").unlink()
    anonymous = source_of(*given)
    assert all(name.isdigit() for name in anonymous.tree.names[-1])
    assert "the names of the taxa are numbers; the categories.json of the competition has their names" in anonymous.notes
    dump(tmp_path / "categories.json", [*shown.values()][1:])
    with pytest.raises(ConfigError, match=r"categories.json' has \d+ categories, train2018.json has \d+, and their ids differ"):
        source_of(*given)


def small(*names: str, images: int = 12) -> dict:
    """Return a competition of 2017 with photographs 0.jpg to 11.jpg of categories with these names."""
    return {
        "images": [{"id": i, "file_name": f"{i}.jpg"} for i in range(images)],
        "annotations": [{"id": i, "image_id": i, "category_id": i % len(names)} for i in range(images)],
        "categories": [{"id": i, "name": name, "supercategory": "Aves" if name[0] < "M" else "Plantae"} for i, name in enumerate(names)],
    }


@pytest.fixture
def photos(records, tmp_path) -> Path:
    for i, row in enumerate(records.rows[:12]):
        shutil.copy(records.folder / row["path"], tmp_path / f"{i}.jpg")
    return tmp_path


def read(path: Path, *keys: str):
    return source_of("data=inat_competition", f"data.path={path}", "data.components=[]", "data.validation_fraction=0.4", *keys)


def test_categories_of_2017_are_species_genera_and_subspecies_of_supercategories(photos):
    content = small("Buteo jamaicensis", "Buteo jamaicensis calurus", "Buteo lineatus", "Quercus", "Mimulus × hybridus", "Anas")
    dump(photos / "train2017.json", content)
    source = read(photos)
    assert source.tree.ranks == ("supercategory", "genus", "species")  # a single subspecies is no rank to predict
    assert [*source.tree.names[1]] == ["Anas", "Buteo", "Mimulus", "Quercus"]
    assert [*source.tree.names[2]] == ["Buteo jamaicensis", "Buteo lineatus", "Mimulus × hybridus"]
    assert (source.labels[:, 2] < 0).sum() == 4 and (source.labels[:, :2] >= 0).all()


def test_a_category_without_photographs_does_not_change_the_form_of_the_others(photos):
    """Subsets of a data set often keep all of its categories."""
    content = small("Buteo lineatus", "Buteo jamaicensis", "Quercus")
    content["categories"].append({"id": 7, "name": "no animal", "supercategory": "other"})
    dump(photos / "train2017.json", content)
    source = read(photos)
    assert [*source.tree.names[1]] == ["Buteo", "Quercus"] and [*source.tree.names[2]] == ["Buteo jamaicensis", "Buteo lineatus"]


def test_every_photograph_is_a_row_or_counted(photos):
    content = small("Buteo lineatus", "Anas acuta", "Quercus robur", images=20)
    content["images"] += [{"id": 3, "file_name": "again.jpg"}, {"id": 30, "file_name": None}, {"id": 31, "file_name": "x" * 5000}]
    labels = content["annotations"]
    labels[:] = [a for a in labels if a["image_id"] not in (4, 5)]
    labels += [{"image_id": 6, "category_id": 1}, {"image_id": 7, "category_id": 1}, {"image_id": 8, "category_id": 99}]
    labels += [{"image_id": 99, "category_id": 0}, {"image_id": 30, "category_id": 0}, {"image_id": 31, "category_id": 0}]
    labels += [{"image_id": 9, "category_id": 0, "bbox": [0, 0, 1, 1]}] * 3
    del labels[[a["image_id"] for a in labels].index(8)]
    dump(photos / "annotations.json", content)
    source = read(photos / "annotations.json", "data.max_bad_fraction=0.9")
    assert source.excluded == {
        "photograph with the id of an earlier one": 1,
        "photograph without an annotation in annotations.json": 2,
        "photograph with annotations of different categories": 1,
        "photograph of a category without an entry in categories": 1,
        "a cell of more than 4096 characters": 1,
        "no image path": 1,
        "image file missing": 8,
    }
    assert len(source.ids) + sum(source.excluded.values()) == len(content["images"])
    assert "annotations.json: 1 annotation of photographs that are not in it" in source.notes


def test_a_test_file_with_annotations_is_evaluated_and_one_without_is_counted(photos):
    content = small("Buteo lineatus", "Anas acuta")
    for split, part in (("train", slice(0, 6)), ("val", slice(6, 10)), ("public_test", slice(10, 12))):
        dump(photos / f"{split}.json", {**content, "images": content["images"][part], "annotations": content["annotations"][part]})
    source = read(photos)
    assert len(source.ids) == 10 and source.excluded == {"called test in 'split', neither trained on nor validated on": 2}
    config = runs.composed(["data=inat_competition", f"data.path={photos / 'train.json'}", *SMALL, "data.components=[]"]).data
    assert build_source(config, test=True).ids[-2:].tolist() == ["10.jpg", "11.jpg"]
    dump(photos / "public_test.json", {"images": content["images"][10:]})
    assert read(photos).excluded == {"photograph without an annotation in public_test.json": 2}
    dump(photos / "train_mini.json", content)  # a part of train.json
    assert read(photos).ids.tolist() == source.ids.tolist() and len(read(photos / "train_mini.json").ids) == 16


def test_nan_and_bogus_uncertainties_are_missing_and_digits_are_kept(photos):
    content = small("Buteo lineatus", "Anas acuta")
    for i, image in enumerate(content["images"]):
        image |= {"latitude": 43.123456789 if i else float("nan"), "longitude": 5, "location_uncertainty": (-80, 106807033, 12)[i % 3]}
    dump(photos / "train.json", content)
    metadata = source_of("data=inat_competition", f"data.path={photos}", "data.validation_fraction=0.4").metadata
    assert np.isnan(metadata.latitude).tolist() == [True] + [False] * 11
    assert np.isnan(metadata.uncertainty).tolist() == [True, True, False] * 4
    assert metadata.latitude[1] == np.float32(43.123456789)


def test_times_of_2021_are_in_utc_and_become_local_solar_times(photos):
    content = small("Buteo lineatus", "Anas acuta")
    for i, image in enumerate(content["images"]):
        image |= {"latitude": 43.83486, "longitude": -75.0, "date": f"2010-07-14 {20 if i else 3}:30:00+00:00"}
    dump(photos / "train.json", content)
    given = ("data=inat_competition", f"data.path={photos}", "data.validation_fraction=0.4")
    assert source_of(*given, "data.time_column=date").metadata.hour.tolist() == [22.5] + [15.5] * 11
    assert np.isnan(source_of(*given).metadata.hour).all()


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "'{' expected|it ends early"),
        ("[1, 2]", "an array contains something else than objects, at character 1"),
        ('{"images": [{"id": 1, "file_name": "a.jpg"', "Expecting ',' delimiter, at character 42"),
        ('{"images": [{"id": 1}] "x"', "',' expected and '\"' found, at character 23"),
        ('{"images": [{"id": 1}]}]', "text after the end"),
        ('{"images": [' + '{"a":' * 30000 + "1", "the brackets are nested too deeply"),
        ('{"images": [{"id": "one"}]}', "an object whose id is 'one'; it must be a whole number"),
        ('{"images": [{"id": 1e300}]}', "an object whose id is '1e300'"),
        ('{"images": [{"id": 99999999999999999999}]}', "an object whose id is '99999999999999999999'"),
        ('{"annotations": []}', "does not contain images"),
        ('{"images": [{"id": 1}], "annotations": []}', r"no photograph of .* can be used: photograph without an annotation"),
        ("\xff\xfe", "cannot be read: 'utf-8' codec"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(tmp_path, text, message):
    (tmp_path / "train.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=message) as caught:
        read(tmp_path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "files, name, message",
    [
        (["train2017.json", "train2018.json"], "", "several training files; set one of its JSON files: 'train2017.json', 'train2018.json'"),
        (["instances.json"], "", "does not contain a training file.*: 'instances.json'"),
        ([], "", "unpack the archives"),
        ([], "train.json", "does not exist"),
    ],
)
def test_the_training_file_must_be_clear(tmp_path, files, name, message):
    for file in files:
        dump(tmp_path / file, {})
    with pytest.raises(ConfigError, match=message):
        read(tmp_path / name)


def test_files_of_different_competitions_are_refused(photos):
    dump(photos / "train.json", small("Buteo lineatus", "Anas acuta"))
    dump(photos / "val.json", small("Buteo lineatus", "Quercus robur"))
    with pytest.raises(ConfigError, match=re.escape("the category 1 is 'Quercus robur' in")):
        read(photos)


def test_objects_are_read_in_blocks_of_any_size(tmp_path, monkeypatch):
    text = (
        '\ufeff{"info": {"a": [1, {"b": "]}"}]}, "x": -1.50, "empty": [], "images" :\n[{"id": 12, "name": "\\u00e9\\"{"} ,{}], "y": {}}\n'
    )
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    for block in range(1, len(text) + 1):
        monkeypatch.setattr(json_stream, "BLOCK", block)
        assert list(json_stream.objects(path)) == [("images", {"id": "12", "name": 'é"{'}), ("images", {})]


def test_memory_does_not_grow_with_the_file_and_an_endless_object_is_refused(monkeypatch):
    class Endless:
        """A file without an end, which counts what is read."""

        def __init__(self, start: str, repeated: str) -> None:
            self.start, self.repeated, self.read_so_far = start, repeated, 0

        def read(self, size: int) -> str:
            self.read_so_far += size
            text, self.start = (self.start + self.repeated * (size // len(self.repeated) + 1)), ""
            return text

    monkeypatch.setattr(json_stream, "LONGEST_OBJECT", 1 << 18)
    monkeypatch.setattr(json_stream, "BLOCK", 1 << 12)
    stream = json_stream._Stream(Endless('{"images": [{"id": 1}', ', {"id": 2}'))
    for _, (_, _item) in zip(range(10_000), stream.members(), strict=False):
        assert len(stream.text) < 3 << 12
    endless = Endless('{"images": [{"id": "', "x")
    with pytest.raises(ValueError, match="an object of more than 262144 characters"):
        list(json_stream._Stream(endless).members())
    assert endless.read_so_far < 1 << 20
