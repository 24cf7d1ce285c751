"""`data=webdataset`: keys, splits, patterns and headers of tar files; members that are not read, and tar files that are refused."""

import gzip
import io
import json
import os
import pickle
import tarfile

import numpy as np
import pytest

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.sources.shards.tar_index import TarReader
from linnaeus.workloads.taxonomy.sources.shards.webdataset import read_records, shard_paths
from tests import runs
from tests.workloads.taxonomy.sources.conftest import METADATA, photograph, read_in_process, same_as_manifest, source_of, trains

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def write(path, members, form="gnu"):
    """Write a tar file. `members`: pairs of a path and bytes, a text, or a dictionary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=FORMATS[form]) as tar:
        for name, data in members:
            data = json.dumps(data) if isinstance(data, dict) else data
            data = data.encode() if isinstance(data, str) else data
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def samples(count, start=0):
    rows = range(start, start + count)
    return [member for i in rows for member in ((f"{i:04d}.png", photograph(i)), (f"{i:04d}.json", {"genus": "G", "species": f"s{i % 3}"}))]


def sharded(records, folder, form, stem="shard"):
    """Write the records to three tar files."""
    for number, rows in enumerate(np.array_split(np.arange(len(records.rows)), 3)):
        chosen = [records.rows[row] for row in rows]
        members = [
            pair
            for row in chosen
            for pair in (
                (row["path"], records.bytes(row)),
                (row["path"].replace(".jpg", ".json"), {name: row[name] or None for name in row if name != "path"}),
            )
        ]
        write(folder / f"{stem}-{number:02d}.tar", members, form)


@pytest.mark.parametrize("form", ["pax", "gnu"])
def test_tar_files_are_the_manifest(records, tmp_path, form):
    sharded(records, tmp_path, form)
    same_as_manifest(records, "data=webdataset", f"data.path={tmp_path}")
    if form == "gnu":
        given = ("data=webdataset", f"data.path='{tmp_path}/shard-{{00..02}}.tar'")
        assert trains(tmp_path, *given, "trainer.num_workers=2")["status"] == "finished"


def test_the_columns_of_the_json_are_metadata(records, tmp_path):
    sharded(records, tmp_path, "ustar")
    assert set(METADATA) <= {*records.rows[0]}
    source = source_of("data=webdataset", f"data.path={tmp_path}", "data.split_column=null", "data.group_column=family")
    assert len(np.unique(source.group)) == len({row["family"] for row in records.rows})


@pytest.mark.parametrize("names", [("train-0.tar", "val-0.tar", "test-0.tar"), ("train/0.tar", "dev/0.tar", "test/0.tar")])
def test_names_of_tar_files_or_folders_are_the_split(tmp_path, names):
    for number, name in enumerate(names):
        write(tmp_path / name, samples(12, 12 * number))
    source = source_of("data=webdataset", f"data.path={tmp_path}")
    assert np.bincount(source.split).tolist() == [12, 12]
    assert source.excluded == {"called test in 'split', neither trained on nor validated on": 12}


@pytest.mark.parametrize("names", [("train-0.tar", "val-0.tar"), ("train/0.tar", "val/0.tar")])
def test_tar_files_that_number_their_samples_from_0_are_read(tmp_path, names):
    for name, start in zip(names, (0, 20), strict=True):
        members = [(m, photograph(start + i // 2) if m.endswith("png") else data) for i, (m, data) in enumerate(samples(12))]
        write(tmp_path / name, members)
    source = source_of("data=webdataset", f"data.path={tmp_path}")
    assert source.ids.tolist() == [f"{name}/{i:04d}.png" for name in names for i in range(12)]
    assert np.bincount(source.split).tolist() == [12, 12] and source.images.files.read(13) == photograph(21)
    assert "12 samples with a key of another tar file; names of photographs begin with their tar file" in source.notes


def test_names_that_are_a_split_only_in_part_are_reported(tmp_path):
    for number, name in enumerate(("train-0.tar", "val-0.tar", "extra-0.tar")):
        write(tmp_path / name, samples(12, 12 * number))
    source = source_of("data=webdataset", f"data.path={tmp_path}")
    assert "names of files are not the split: some begin with train, val, 'extra-0.tar' does not" in source.notes


def test_whole_numbers_of_json_are_ids(tmp_path):
    """Programs store a column of ids with missing cells as floats."""
    ids = [7.0, "007", 1e11, 1e300, 0.5, float("nan"), None, True]
    members = [member for i, one in enumerate(ids) for member in ((f"{i}.png", photograph(i)), (f"{i}.json", json.dumps({"id": one})))]
    config = runs.composed(["data=webdataset", f"data.path={write(tmp_path / 'a.tar', members)}"]).data
    column = read_records(config, lambda header: header).table.columns["id"]
    assert [column.values[code] for code in column.codes] == ["7", "007", "100000000000", "1e+300", "0.5", "nan", "", "True"]


def test_a_byte_order_mark_is_not_part_of_a_text(tmp_path):
    """Editors on Windows write it. As a part of a name it would make a second taxon of it."""
    mark, names = b"\xef\xbb\xbf", (b"oak", b"\xef\xbb\xbfoak", b"ash")
    members = [member for i in range(12) for member in ((f"{i}.png", photograph(i)), (f"{i}.cls", names[i % 3]))]
    source = source_of("data=webdataset", f"data.path={write(tmp_path / 'a.tar', members)}")
    assert source.tree.names == (("ash", "oak"),)
    members = [member for i in range(12) for member in ((f"{i}.png", photograph(i)), (f"{i}.json", mark + b'{"species": "s%d"}' % (i % 2)))]
    source = source_of("data=webdataset", f"data.path={write(tmp_path / 'b.tar', members)}")
    assert not source.excluded and len(source.ids) == 12


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", ["a.jpg", "b.c/d" * 10 + ".jpg", "folder/" * 20 + "x" * 90 + ".jpg", "Ährenfeld/ñ" + "é" * 60 + ".jpg"])
def test_members_are_those_of_tarfile(tmp_path, form, name):
    if form == "ustar":  # which has at most 100 bytes after the last slash
        name = name[-90:] if name.isascii() else name[-40:]
    path = write(tmp_path / "a.tar", [(name, b"x" * 700), ("second.txt", b""), ("third.jpg", b"y" * 512)], form)
    with tarfile.open(path, "a", format=FORMATS[form]) as tar:
        folder, link = tarfile.TarInfo("folder"), tarfile.TarInfo("link.jpg")
        folder.type, link.type, link.linkname = tarfile.DIRTYPE, tarfile.SYMTYPE, name
        tar.addfile(folder)
        tar.addfile(link)
    with tarfile.open(path) as tar:
        expected = [(m.name, m.isreg(), m.offset_data, m.size) for m in tar]
    with TarReader(str(path)) as reader:
        assert [(m.name.rstrip("/"), m.regular, m.start, m.size) for m in reader.members()] == expected


def test_everything_that_is_not_read_is_counted(tmp_path):
    members = samples(12)
    members += [("0016.png", photograph(16)), ("0016.json", {"species": "s1", "seen": {"by": ["Ann", "Bo"]}})]
    members += [("0012.png", photograph(12)), ("0012.json", "[1]"), ("0013.json", {"species": "s1"}), ("0014.png", photograph(14))]
    members += [("0014.seg.png", b""), ("0014.jpg", b""), ("0014.npy", b"12"), ("README", "text"), ("._0015.png", b"mac")]
    members += [("22.05.png", photograph(15)), ("22.json", {"species": "s1", "genus": "G"})]
    source = source_of("data=webdataset", f"data.path={write(tmp_path / 'a.tar', members)}")
    assert source.excluded == {
        "a sample with a json that is not an object": 1,
        "a sample without a photograph": 2,  # 0013, and 22, whose photograph has the suffix 05.png
        "no label at any rank": 1,  # 0014
    }
    assert len(source.ids) + sum(source.excluded.values()) == 12 + 5
    lines = {line.rpartition(": ")[2]: int(line.split()[0]) for line in source.notes if "of the tar files not read" in line}
    named = {".seg.png": 1, ".npy": 1, ".05.png": 1, "name without a key or a suffix": 2, "list seen.by of json": 1}
    assert lines == named | {"second photograph of a sample (.jpg)": 1}


def test_many_kinds_of_members_are_a_few_lines(tmp_path):
    members = [*samples(12), *((f"{100 + i}.{i}.x", b"") for i in range(20))]
    source = source_of("data=webdataset", f"data.path={write(tmp_path / 'a.tar', members)}")
    lines = [line for line in source.notes if "of the tar files not read" in line]
    assert len(lines) == 9 and sum(int(line.split()[0]) for line in lines) == 20
    assert source.excluded == {"a sample without a photograph": 20}


def test_without_ranks_the_label_is_the_species_and_a_text_may_be_chosen(tmp_path):
    members = [
        m for i in range(12) for m in ((f"{i}.png", photograph(i)), (f"{i}.cls", str(i % 3)), (f"{i}.sci.txt", f"Quercus s{i % 2}a\n"))
    ]
    path = write(tmp_path / "a.tar", members)
    assert [list(names) for names in source_of("data=webdataset", f"data.path={path}").tree.names] == [["0", "1", "2"]]
    chosen = source_of("data=webdataset", f"data.path={path}", "data.rank_columns={species: sci.txt}")
    assert [list(names) for names in chosen.tree.names] == [["Quercus s0a", "Quercus s1a"]]


def test_photographs_are_read_after_a_fork_and_when_pickled(tmp_path):
    files = source_of("data=webdataset", f"data.path={write(tmp_path / 'a.tar', samples(12))}").images.files
    assert pickle.loads(pickle.dumps(files)).read(5) == photograph(5)
    assert read_in_process(files, 5) == photograph(5)


def test_patterns_are_expanded_as_a_shell_does(tmp_path):
    for name in ("train-008.tar", "train-009.tar", "train-010.tar", "val-1.tar"):
        write(tmp_path / name, samples(1))
    names = lambda pattern: [os.path.basename(path) for path in shard_paths(f"{tmp_path}/{pattern}")]
    assert names("train-{008..010}.tar") == ["train-008.tar", "train-009.tar", "train-010.tar"]
    assert names("{val-1,train-00{8..9}}.tar".replace("{8..9}", "8")) == ["val-1.tar", "train-008.tar"]
    assert names("train-*.tar") == ["train-008.tar", "train-009.tar", "train-010.tar"]
    with pytest.raises(ConfigError, match=r"data.path: tar files that do not exist: 3 of 6, such as .*train-011.tar"):
        names("train-{008..013}.tar")
    with pytest.raises(ConfigError, match="more than 1000000"):
        names("{0..999}{0..999}{0..999}.tar")


def test_shards_in_linked_folders_are_read(tmp_path):
    for folder in ("shards", "other"):
        (tmp_path / folder).mkdir()
    write(tmp_path / "shards/val-0.tar", samples(1))
    write(tmp_path / "other/train-0.tar", samples(1))
    (tmp_path / "shards/linked").symlink_to(tmp_path / "other")
    assert shard_paths(str(tmp_path / "shards")) == [f"{tmp_path}/shards/linked/train-0.tar", f"{tmp_path}/shards/val-0.tar"]


def cut(path):
    path.write_bytes(path.read_bytes()[:1000])


def cut_between_members(path):
    """Only the mark of the end is missing: the tar file may be whole."""
    with tarfile.open(path) as tar:
        end = max(member.offset_data for member in tar) + tarfile.BLOCKSIZE
    path.write_bytes(path.read_bytes()[:end])


def flip(path):
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)


def compress(path):
    path.write_bytes(gzip.compress(path.read_bytes()))


def double(path):
    path.write_bytes(path.read_bytes() * 2)


def test_a_tar_file_without_its_end_is_named(tmp_path):
    cut_between_members(write(tmp_path / "a.tar", samples(12)))
    source = source_of("data=webdataset", f"data.path={tmp_path}")
    assert len(source.ids) == 12 and "1 tar file without the mark of the end, perhaps cut: a.tar" in source.notes


@pytest.mark.parametrize(
    "change, message",
    [
        (cut, "cannot be read as a tar file from byte 1000 on: the file is cut"),
        (flip, "from byte 0 on: bad checksum"),
        (compress, "is compressed with gzip: its photographs cannot be read singly; unpack it"),
        (double, "the archive ends, but the file goes on"),
        (lambda path: write(path, [*samples(3), ("0001.png", photograph(1))]), "two samples have the key '0001', the second in 'a.tar'"),
        (lambda path: write(path, [("a.json", {})]), "no sample with a photograph: a sample without a photograph \\(1\\)"),
        (os.remove, "does not contain a tar file"),
    ],
)
def test_a_tar_file_that_cannot_be_used_is_one_line(tmp_path, change, message):
    change(write(tmp_path / "a.tar", samples(12)))
    with pytest.raises(ConfigError, match=message) as caught:
        source_of("data=webdataset", f"data.path={tmp_path}")
    assert str(caught.value).startswith("data.path: ") and "\n" not in str(caught.value)


def test_a_pipe_in_place_of_a_tar_file_is_one_line(tmp_path):
    write(tmp_path / "a-0.tar", samples(6))
    os.mkfifo(tmp_path / "a-1.tar")
    with pytest.raises(ConfigError, match=r"data.path: '.*a-1.tar' is not a file; remove it"):
        source_of("data=webdataset", f"data.path={tmp_path}")


def test_a_folder_of_photographs_has_no_effect_on_tar_files(tmp_path):
    write(tmp_path / "a.tar", samples(12))
    with pytest.raises(ConfigError, match=r"^data.root: '/photos' has no effect, because the photographs are in '.*'; leave it out$"):
        source_of("data=webdataset", f"data.path={tmp_path}", "data.root=/photos")
