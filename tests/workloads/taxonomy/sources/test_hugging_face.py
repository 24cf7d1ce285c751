"""`data=hugging_face`: folders of save_to_disk and of Parquet shards, written as the library `datasets` writes them, without it."""

import datetime
import json
import os
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.sources.shards import hugging_face, parquet_images
from linnaeus.workloads.taxonomy.sources.shards.hugging_face_files import find_parts
from tests.workloads.taxonomy.sources.conftest import METADATA, photograph, read_in_process, same_as_manifest, source_of, trains

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
NAMES = ["Quercus robur", "Quercus alba", "Fagus sylvatica"]


def table_of(columns, **features):
    """Return a table with the schema metadata of `datasets`."""
    info = {"info": {"features": {name: {"_type": "Value"} for name in columns} | {"image": {"_type": "Image"}} | features}}
    return pa.table(columns).replace_schema_metadata({"huggingface": json.dumps(info)})


def labelled(count, start=0, labels=None):
    images = pa.array([{"bytes": photograph(i), "path": f"{i}.png"} for i in range(start, start + count)], IMAGE)
    label = pa.array(labels if labels is not None else [i % 3 for i in range(count)], pa.int64())
    return table_of({"image": images, "label": label}, label={"_type": "ClassLabel", "names": NAMES})


def save(folder, table, shards=1, batch=5, file=pa.ipc.new_stream):
    """Write a folder of save_to_disk."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"data-{i:05d}-of-{shards:05d}.arrow" for i in range(shards)]
    for name, rows in zip(names, np.array_split(np.arange(table.num_rows), shards), strict=True):
        with pa.OSFile(str(folder / name), "wb") as sink, file(sink, table.schema) as writer:
            writer.write_table(table.take(rows), max_chunksize=batch)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "0", "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": {}}))
    return folder


def save_splits(folder, **tables):
    for split, table in tables.items():
        save(folder / split, table)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(tables)}))
    return folder


def of_records(records):
    """Return the table of the records, with numbers as numbers, dates as dates, and the family as a ClassLabel."""
    rows = records.rows
    columns = {"image": pa.array([{"bytes": records.bytes(row), "path": row["path"]} for row in rows], IMAGE)}
    for name in ("order", "genus", "species", "time", "split"):
        columns[name] = pa.array([row[name] or None for row in rows], pa.string())
    columns["species"] = columns["species"].dictionary_encode()
    for name in ("latitude", "longitude", "uncertainty", "elevation"):
        columns[name] = pa.array([float(row[name]) if row[name] else None for row in rows], pa.float64())
    columns["date"] = pa.array([datetime.date.fromisoformat(row["date"]) if row["date"] else None for row in rows], pa.date32())
    families = sorted({row["family"] for row in rows} - {""})
    columns["family"] = pa.array([families.index(row["family"]) if row["family"] else -1 for row in rows], pa.int64())
    columns["boxes"] = pa.array([[1.0, 2.0]] * len(rows))
    return table_of(columns, family={"_type": "ClassLabel", "names": families})


@pytest.mark.parametrize("form", ["stream", "file", "parquet"])
def test_saved_rows_are_the_manifest(records, tmp_path, form):
    table = of_records(records)
    assert set(METADATA) <= set(table.column_names)
    if form == "parquet":
        pq.write_table(table, tmp_path / "data.parquet", row_group_size=7)
    else:
        save(tmp_path, table, shards=3, file=pa.ipc.new_stream if form == "stream" else pa.ipc.new_file)
    given = ("data=hugging_face", f"data.path={tmp_path}")
    source = same_as_manifest(records, *given)
    assert "columns of lists and structures are not read: boxes" in source.notes
    if form != "file":
        assert trains(tmp_path / "runs", *given, "trainer.num_workers=2")["status"] == "finished"


def test_splits_are_those_of_the_folders_or_of_the_names_of_shards(tmp_path):
    train, validation, test = labelled(20), labelled(10, 20), labelled(6, 30, labels=[-1] * 6)  # published test splits hide their labels
    save_splits(tmp_path / "saved", train=train, validation=validation, test=test)
    (tmp_path / "hub/data").mkdir(parents=True)
    for name, table in {"train": train, "validation": validation, "test": test}.items():
        pq.write_table(table, tmp_path / f"hub/data/{name}-00000-of-00001.parquet", row_group_size=4)
    sources = [source_of("data=hugging_face", f"data.path={tmp_path / name}") for name in ("saved", "hub")]
    for source in sources:
        assert np.bincount(source.split).tolist() == [20, 10] and sum(source.excluded.values()) == 6
        assert [list(names) for names in source.tree.names] == [["Fagus", "Quercus"], sorted(NAMES)]
        train_ids = set(source.ids[source.split == 0])
        assert train_ids == {f"{i}.png" for i in range(20)}
    assert len({source.split.tobytes() for source in sources}) == 1


@pytest.mark.parametrize("form", ["saved", "hub"])
def test_class_numbers_are_named_by_the_classes_of_their_own_split(tmp_path, form):
    """Splits that were saved one by one number their classes differently, if a class is not in all of them."""
    train, names = labelled(12), [NAMES[2], NAMES[0]]
    classes = {"label": {"_type": "ClassLabel", "names": names}}
    validation = table_of(dict(zip(train.column_names, labelled(4, 12, labels=[0, 1, 0, 1]).columns, strict=True)), **classes)
    if form == "saved":
        save_splits(tmp_path, train=train, validation=validation)
    else:
        for name, table in {"train": train, "validation": validation}.items():
            pq.write_table(table, tmp_path / f"{name}-00000-of-00001.parquet")
    source = source_of("data=hugging_face", f"data.path={tmp_path}")
    species = [source.tree.names[1][label] for label in source.labels[:, 1]]
    assert dict(zip(source.ids, species, strict=True)) == {f"{i}.png": NAMES[i % 3] if i < 12 else names[i % 2] for i in range(16)}


def test_the_classes_of_many_files_are_read_once(tmp_path, monkeypatch):
    """Thousands of files may have thousands of classes."""
    read = []
    monkeypatch.setattr(hugging_face, "_features", lambda *place, own=hugging_face._features: read.append(place) or own(*place))
    for i in range(3):
        pq.write_table(labelled(6, 6 * i), tmp_path / f"train-{i:05d}-of-00003.parquet")
    assert len(source_of("data=hugging_face", f"data.path={tmp_path}").ids) == 18 and len(read) == 1


def test_photographs_of_a_file_without_features_are_found(tmp_path):
    """Programs other than `datasets` do not write the features."""
    table = labelled(12).replace_schema_metadata(None).rename_columns(["image", "species"])
    pq.write_table(table, tmp_path / "a.parquet")
    source = source_of("data=hugging_face", f"data.path={tmp_path}")
    assert sorted(source.ids) == sorted(f"{i}.png" for i in range(12)) and source.images.files.read(3) == photograph(3)


@pytest.mark.parametrize("word", ["dev", "evaluation", "tst"])
def test_all_words_of_a_split_column_are_names_of_shards(tmp_path, word):
    for split in ("train", word):
        (tmp_path / f"{split}-00000-of-00001.parquet").touch()
    assert {part.split for part in find_parts(tmp_path)} == {"train", word}


def test_shards_in_linked_folders_are_read(tmp_path):
    for name in ("hub", "other"):
        (tmp_path / name).mkdir()
    pq.write_table(labelled(6), tmp_path / "hub/val.parquet")
    pq.write_table(labelled(6), tmp_path / "other/train.parquet")
    (tmp_path / "hub/linked").symlink_to(tmp_path / "other")
    assert find_parts(tmp_path / "hub") == [(tmp_path / "hub/linked/train.parquet", "train"), (tmp_path / "hub/val.parquet", "val")]


def test_paths_that_repeat_get_the_number_of_the_row(tmp_path):
    table = labelled(12)
    images = [{"bytes": photograph(i), "path": [None, "/home/a/same.png", "same.png"][i % 3]} for i in range(12)]
    save(tmp_path, table.set_column(0, "image", pa.array(images, IMAGE)))
    source = source_of("data=hugging_face", f"data.path={tmp_path}")
    assert source.ids[:5].tolist() == ["#0", "same.png", "same.png#2", "#3", "same.png#4"]
    assert [source.images.files.read(row) for row in range(12)] == [photograph(i) for i in range(12)]


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_a_row_without_bytes_or_class_is_counted(tmp_path, form):
    table = labelled(40, labels=[-1 if i == 4 else None if i == 5 else i % 3 for i in range(40)])
    images = [{"bytes": None if i == 7 else photograph(i), "path": f"{i}.png"} for i in range(40)]
    table = table.set_column(0, "image", pa.array(images, IMAGE))
    save(tmp_path, table) if form == "arrow" else pq.write_table(table, tmp_path / "a.parquet", row_group_size=6)
    source = source_of("data=hugging_face", f"data.path={tmp_path}", "data.max_bad_fraction=0.1")
    assert source.excluded == {"image file missing": 1, "no label at any rank": 2} and len(source.ids) == 37
    row = source.ids.tolist().index("8.png")
    assert source.images.files.read(row) == photograph(8)


def test_a_photograph_may_be_a_column_of_bytes_and_another_column_may_be_chosen(tmp_path):
    table = labelled(12).rename_columns(["first", "label"])
    table = table.append_column("second", pa.array([photograph(100 + i) for i in range(12)], pa.large_binary()))
    table = table.replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": {"label": {"_type": "ClassLabel", "names": NAMES}}}})}
    )
    save(tmp_path, table)
    source = source_of("data=hugging_face", f"data.path={tmp_path}", "data.image_column=second")
    assert source.ids[0] == "row 0" and source.images.files.read(3) == photograph(103)


def test_a_data_set_of_paths_is_read_from_its_folder(tmp_path):
    for i in range(12):
        (tmp_path / f"{i}.png").write_bytes(photograph(i))
    save(tmp_path, pa.table({"file_name": [f"{i}.png" for i in range(12)], "species": [f"s{i % 3}" for i in range(12)]}))
    assert len(source_of("data=hugging_face", f"data.path={tmp_path}").ids) == 12


def test_a_row_with_a_cell_that_is_too_long_is_counted_and_its_split_is_not_read(tmp_path):
    table = labelled(13).append_column("split", pa.array(["x" * 5000, *["train", "train", "val"] * 4]))
    source = source_of("data=hugging_face", f"data.path={save(tmp_path, table)}")
    assert source.excluded == {"a cell of more than 4096 characters": 1} and np.bincount(source.split).tolist() == [8, 4]
    assert source.ids[0] == "1.png" and source.images.files.read(0) == photograph(1)


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_photographs_are_read_after_a_fork_and_pickled_without_groups(tmp_path, monkeypatch, form):
    monkeypatch.setattr(parquet_images, "KEPT", 300)  # bytes: a group at a time
    save(tmp_path, labelled(12)) if form == "arrow" else pq.write_table(labelled(12), tmp_path / "a.parquet", row_group_size=4)
    files = source_of("data=hugging_face", f"data.path={tmp_path}").images.files
    assert [files.read(row) for row in (0, 11, 5)] == [photograph(i) for i in (0, 11, 5)]
    copied = pickle.dumps(files)
    assert photograph(5)[20:60] not in copied and pickle.loads(copied).read(5) == photograph(5)
    assert read_in_process(files, 5) == photograph(5)


def test_large_parquet_is_not_read_for_its_sizes(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_images, "MEASURED", 0)
    pq.write_table(labelled(12), tmp_path / "a.parquet", row_group_size=4)
    source = source_of("data=hugging_face", f"data.path={tmp_path}")
    assert len(set(source.images.files.sizes()[:4].tolist())) == 1 and source.images.files.read(7) == photograph(7)


def compressed(folder):
    path = next(folder.glob("*.arrow"))
    with pa.OSFile(str(path), "wb") as sink:
        table = labelled(12)
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table)


def cut(folder):
    path = next(folder.glob("*.arrow"))
    path.write_bytes(path.read_bytes()[:1500])


def indices(folder):
    state = json.loads((folder / "state.json").read_text()) | {"_indices_data_files": [{"filename": "indices.arrow"}]}
    (folder / "state.json").write_text(json.dumps(state))


def shards(folder):
    (folder / "state.json").unlink()
    pq.write_table(labelled(12), folder / "train-00000-of-00002.parquet")


@pytest.mark.parametrize(
    "change, message",
    [
        (compressed, "is compressed or damaged; save it again with save_to_disk"),
        (cut, "cannot be read"),
        (indices, "flatten_indices"),
        (shards, "the folder has 1 of 2 shards of 'train'"),
        (lambda folder: next(folder.glob("*.arrow")).unlink(), "lacks data-00000-of-00001.arrow; copy the whole folder"),
        (lambda folder: (folder / "state.json").write_text("[]"), "is not an object of JSON"),
        (lambda folder: (folder / "state.json").unlink(), "has neither dataset_dict.json, state.json nor a .parquet file"),
        (lambda folder: save(folder, labelled(12, labels=[7] * 12)), "'label' has the class 7, but names for 3 classes"),
        (lambda folder: save(folder, labelled(12).slice(0, 0)), "has no rows"),
        (lambda folder: save_splits(folder, clean=labelled(3), other=labelled(3)), "the splits clean, other are not train, val and test"),
    ],
)
def test_a_data_set_that_cannot_be_used_is_one_line(tmp_path, change, message):
    change(save(tmp_path, labelled(12)))
    with pytest.raises(ConfigError, match=message) as caught:
        source_of("data=hugging_face", f"data.path={tmp_path}")
    assert str(caught.value).startswith("data.path: ") and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["train-00001-of-00002.parquet", "train/state.json"])
def test_a_pipe_in_place_of_a_file_is_one_line(tmp_path, name):
    if name.endswith("json"):
        save_splits(tmp_path, train=labelled(6))
        (tmp_path / name).unlink()
    else:
        pq.write_table(labelled(6), tmp_path / "train-00000-of-00002.parquet")
    os.mkfifo(tmp_path / name)
    with pytest.raises(ConfigError, match=r"data.path: .* is not a file"):
        source_of("data=hugging_face", f"data.path={tmp_path}")
