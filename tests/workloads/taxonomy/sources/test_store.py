"""`linnaeus prepare` and `data=store`: the same data as its source, the same bytes after any kill, an account of every record."""

import csv
import gc
import hashlib
import json
import os
import pickle
import re
import shlex
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from PIL import Image

from linnaeus.errors import ConfigError
from linnaeus.schedule import OpsSchedule, resolve_all_schedule_params
from linnaeus.workloads.taxonomy.arrays.text_arrays import digests
from linnaeus.workloads.taxonomy.arrays.text_lines import TextLines
from linnaeus.workloads.taxonomy.doctor import doctor_cli
from linnaeus.workloads.taxonomy.images.decoding import decode
from linnaeus.workloads.taxonomy.images.image_files import FolderFiles
from linnaeus.workloads.taxonomy.images.integrity import NotAnImage
from linnaeus.workloads.taxonomy.manifest import source_options
from linnaeus.workloads.taxonomy.manifest.tables import column
from linnaeus.workloads.taxonomy.store import complete_store
from linnaeus.workloads.taxonomy.store import prepare_store as preparation
from linnaeus.workloads.taxonomy.store.encoding import Encoding
from linnaeus.workloads.taxonomy.store.parts import PartWriter
from linnaeus.workloads.taxonomy.store.store_layout import read_lines, read_record, write_lines, write_record
from linnaeus.workloads.taxonomy.store.store_source import build_source
from linnaeus.workloads.taxonomy.workload import TaxonomyWorkload
from tests import runs
from tests.workloads.taxonomy.sources.conftest import SMALL, source_of, trains
from tests.workloads.taxonomy.sources.test_webdataset import sharded

ONE = "--processes=1"


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Parts of 30 photographs, settings composed by Hydra once, and a disk that is not waited for."""
    monkeypatch.setattr(preparation, "PART", 30)
    monkeypatch.setattr(source_options, "compose", runs.composed)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def prepare(out, records, *more, path=None):
    """Run the command on the manifest of `records`, with one process unless `more` has --processes. Return its exit status."""
    processes = [] if any(option.startswith("--processes") for option in more) else [ONE]
    return preparation.main(["manifest", str(out), f"data.path={path or records.folder / 'manifest.csv'}", *processes, *more])


def store_of(out, *keys):
    return build_source(runs.composed(["data=store", f"data.path={out}", *SMALL, *keys]).data)


def write_rows(path, rows):
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    return path


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_store_of_originals_is_the_manifest(records, tmp_path, capsys):
    store = tmp_path / "the store (1)"
    assert prepare(store, records, "--images=original") == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == [str(len(records.rows)), "records"] and printed[-1].startswith("next: linnaeus data=store")
    assert len(files(store / "parts")) == -(-len(records.rows) // 30)
    theirs = source_of("data=manifest", f"data.path={records.folder / 'manifest.csv'}")
    (path,) = shlex.split(printed[-1].removeprefix("next: linnaeus data=store "))  # as printed
    ours = store_of(path.removeprefix("data.path="))
    assert ours.fingerprint == theirs.fingerprint and ours.ids.tolist() == theirs.ids.tolist()
    assert ours.images.read(np.arange(9))[8].tolist() == theirs.images.read(np.arange(9))[8].tolist()


@pytest.mark.parametrize("encoding, noted", [("raw", ["17"]), ("jpeg", ["17"]), ("original", [])])
def test_images_larger_than_the_photographs_of_a_store_are_noted(encoding, noted, records, tmp_path):
    side = [] if encoding == "original" else ["--short-side=16"]
    assert prepare(tmp_path / "store", records, f"--images={encoding}", *side) == 0
    for size, expected in (("16", []), ("17", noted)):
        config = runs.composed(["data=store", f"data.path={tmp_path / 'store'}", f"data.image_size={size}"]).data
        notes = [note for note in build_source(config).notes if "are enlarged to data.image_size" in note]
        assert [note.split("image_size=")[1][:2] for note in notes] == expected


@pytest.mark.parametrize("encoding", ["jpeg", "raw"])
def test_a_store_trains_and_has_the_labels_and_metadata_of_its_source(encoding, records, tmp_path):
    assert prepare(tmp_path / "store", records, f"--images={encoding}", "--short-side=16") == 0
    theirs, ours = source_of("data=manifest", f"data.path={records.folder / 'manifest.csv'}"), store_of(tmp_path / "store")
    np.testing.assert_array_equal(ours.labels, theirs.labels)
    for name, values in vars(theirs.metadata).items():
        np.testing.assert_array_equal(getattr(ours.metadata, name), values)
    whole = decode((records.folder / ours.ids[3]).read_bytes(), 16, 10**6)
    (stored,) = ours.images.read(np.array([3]))
    assert stored.shape == whole.shape == (16, 16, 3)
    assert np.abs(stored.astype(int) - whole.astype(int)).mean() <= (0 if encoding == "raw" else 6)
    assert ours.images.area(3) == 16 * 16, "the image size of experiment=photos is chosen by it"
    assert trains(tmp_path, "data=store", f"data.path={tmp_path / 'store'}")["status"] == "finished"


@pytest.mark.slow  # quick: the batches of a run from a store with workers, tests/laws/test_position_from_a_store.py
def test_loader_workers_read_the_same(records, tmp_path):
    prepare(tmp_path / "store", records, "--images=raw", "--short-side=16")
    small = [text for text in runs.TINY if not text.startswith(("data.", "trainer.num_workers"))]
    weights = []
    for workers in (0, 2):
        given = [
            "data=store",
            f"data.path={tmp_path / 'store'}",
            *SMALL,
            *small,
            "trainer.length=2epochs",
            f"trainer.num_workers={workers}",
        ]
        run = runs.resumed(runs.composed([*given, "model.size=micro", f"run.root={tmp_path}", f"run.name=workers{workers}"]))
        weights.append(runs.newest(run).model_state)
    assert runs.unequal(*weights) == []


def test_a_preparation_that_was_killed_anywhere_ends_with_the_same_bytes(records, tmp_path):
    path = write_rows(records.folder / "sites.csv", [dict(row, site=f"site {i % 9}") for i, row in enumerate(records.rows)])
    assert prepare(tmp_path / "whole", records, path=path) == 0
    whole, calls = files(tmp_path / "whole"), 0
    original, own = os.replace, os.getpid()

    def counted(*arguments):
        nonlocal calls
        calls += 1
        return original(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", counted)
        prepare(tmp_path / "counted", records, path=path)
    assert calls > 15 and "columns/0.npy" in whole
    for call in range(1, calls + 1):
        out = tmp_path / f"killed{call}"
        with runs.killed(os, "replace", call, after=call % 2 == 0), pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "getpid", lambda: own + 1)  # the names of temporary files contain it
            prepare(out, records, path=path)
        assert prepare(out, records, path=path) == 0
        assert files(out) == whole, call
        shutil.rmtree(out)


def test_only_one_of_two_processes_completes_a_store(records, tmp_path, monkeypatch, capsys):
    """Threads stand for processes: a lock of `flock` belongs to the open file. Both have written all parts before one may complete."""
    assert prepare(tmp_path / "whole", records) == 0
    both, inside, most = threading.Barrier(2, timeout=600), [], []
    write, finish = preparation._write_parts, preparation.finish

    def write_parts(*arguments):
        write(*arguments)
        both.wait()

    def finish_alone(*arguments):
        inside.append(1)
        time.sleep(0.2)  # without a lock the other begins now
        most.append(len(inside))
        lines = finish(*arguments)
        inside.pop()
        return lines

    monkeypatch.setattr(preparation, "_write_parts", write_parts)
    monkeypatch.setattr(preparation, "finish", finish_alone)
    with ThreadPoolExecutor(2) as pool:
        ended = [pool.submit(prepare, tmp_path / "store", records, f"--task={task}/2") for task in (1, 2)]
    assert [one.result() for one in ended] == [0, 0] and most == [1]
    assert files(tmp_path / "store") == files(tmp_path / "whole")
    printed = capsys.readouterr().out
    assert printed.count("next: linnaeus data=store") == 2 and printed.count("was complete before") == 1


@pytest.mark.parametrize("step", ["_begin", "_missing", "_write_parts", "_locked"])
def test_a_store_that_another_process_completes_meanwhile_is_complete(step, records, tmp_path, monkeypatch, capsys):
    original = getattr(preparation, step)

    def overtaken(*arguments):
        monkeypatch.setattr(preparation, step, original)
        assert prepare(tmp_path / "store", records) == 0
        return original(*arguments)

    monkeypatch.setattr(preparation, step, overtaken)
    assert prepare(tmp_path / "store", records) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{tmp_path / 'store'} was complete before"
    assert prepare(tmp_path / "alone", records) == 0
    assert files(tmp_path / "store") == files(tmp_path / "alone")


def test_a_kill_between_the_record_and_the_cleaning_is_mended(records, tmp_path):
    prepare(tmp_path / "whole", records)
    with runs.killed(complete_store, "remove_intermediate", 1):
        prepare(tmp_path / "cut", records)
    assert prepare(tmp_path / "cut", records) == 0
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


@pytest.mark.parametrize("damage", ["flip", "table", "table of another part", "cut"])
def test_a_part_that_changed_after_a_kill_is_written_again(damage, records, tmp_path, capsys):
    prepare(tmp_path / "whole", records)
    out = tmp_path / "cut"
    with runs.killed(preparation, "finish", 1):
        prepare(out, records)
    part, table = out / "parts/00001.bin", out / "parts/00001.npz"
    content = part.read_bytes()
    if damage == "flip":
        part.write_bytes(content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
    elif damage == "cut":
        part.write_bytes(content[:5000])
    elif damage == "table":
        table.write_bytes(table.read_bytes()[:300])
    else:
        shutil.copy(out / "parts/00000.npz", table)
    capsys.readouterr()
    assert prepare(out, records) == 0
    assert "damaged, to be written again: 1 part (1)" in capsys.readouterr().err
    assert files(out) == files(tmp_path / "whole")


def test_another_source_with_the_same_names_and_sizes_is_refused(records, tmp_path, capsys):
    shutil.copytree(records.folder, tmp_path / "photos", ignore=shutil.ignore_patterns("export"))
    table = tmp_path / "photos/manifest.csv"
    with runs.killed(preparation, "finish", 1):
        prepare(tmp_path / "store", records, path=table)
    first = tmp_path / "photos" / records.rows[0]["path"]
    first.write_bytes(first.read_bytes()[:-1] + b"\x00")
    with pytest.raises(SystemExit):
        prepare(tmp_path / "store", records, path=table)
    error = capsys.readouterr().err
    assert f"{first.name}' is not the photograph that was prepared, although its name and size are the same" in error
    assert error.count("\n") == 1 and not (tmp_path / "store/store.json").exists()


@pytest.mark.parametrize("name", ["store.json", "taxonomy.json", "names.txt", "labels.npy", "place.npy", "parts/00001.bin"])
def test_a_store_whose_files_have_changed_is_refused(name, records, tmp_path, capsys):
    prepare(tmp_path / "store", records)
    path = tmp_path / "store" / name
    content = path.read_bytes()
    place = len(content) // 2
    changed = [content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :], content[:place], None]
    for new in changed[1 if name.startswith("parts") else 0 :]:
        path.unlink()
        if new is None:
            os.mkfifo(path)
        else:
            path.write_bytes(new)
        with pytest.raises(ConfigError, match=r"data.path: .*(is not as `linnaeus prepare` wrote it; delete|is not a complete store)"):
            store_of(tmp_path / "store")


def test_two_processes_and_shares_of_a_task_write_the_same_bytes(records, tmp_path, capsys):
    for name, options in {"one": [[]], "tasks": [["--task=2/2"], ["--task=1/2"], []], "two": [["--processes=2"]]}.items():
        for option in options:
            assert prepare(tmp_path / name, records, *option) == 0
    assert files(tmp_path / "one") == files(tmp_path / "tasks") == files(tmp_path / "two")
    assert "run the command without --task after the others" in capsys.readouterr().out
    assert prepare(tmp_path / "few", records, "--task=16/16") == 0
    assert re.search(r"^--task 16/16 has nothing to do: the source has \d parts$", capsys.readouterr().out, re.M)


def test_every_record_is_stored_or_accounted_for(records, tmp_path, capsys):
    folder = tmp_path / "photos"
    shutil.copytree(records.folder, folder, ignore=shutil.ignore_patterns("export"))
    paths = [row["path"] for row in records.rows]
    (folder / paths[3]).write_bytes(b"not a photograph")
    (folder / paths[40]).unlink()
    lines = (folder / "manifest.csv").read_text().splitlines()
    cells = lines[11].split(",")
    lines[11] = ",".join([cells[0], *[""] * 4, *cells[5:]])
    (folder / "manifest.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(SystemExit):
        prepare(tmp_path / "store", records, path=folder / "manifest.csv")
    assert f"data.max_bad_fraction: 1 of {len(paths)} image files" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        prepare(tmp_path / "store", records, "data.max_bad_fraction=0.02", path=folder / "manifest.csv")
    assert "data.max_bad_fraction: 2 of" in capsys.readouterr().err and not (tmp_path / "store/store.json").exists()
    assert prepare(tmp_path / "store", records, "data.max_bad_fraction=0.1", path=folder / "manifest.csv") == 0
    record = json.loads((tmp_path / "store/store.json").read_text())
    assert record["account"] == {"records of the source": len(paths), "stored": len(paths) - 3, "left out": 3}
    assert sorted(record["excluded"].values()) == [1, 1, 1]
    with (tmp_path / "store/left_out.csv").open(newline="") as file:
        header, *lines = csv.reader(file)
    named = {record: reason for record, reason, number in lines if number == "1"}
    assert header == ["record", "reason", "records"] and len(lines) == 3
    assert set(named) == {paths[3], paths[40], records.rows[10]["path"]} and named[records.rows[10]["path"]] == "no label at any rank"
    assert "not an image" in named[paths[3]] and named[paths[40]] == "image file missing"
    assert len(store_of(tmp_path / "store").ids) == len(paths) - 3


def test_a_photograph_that_no_jpeg_can_hold_is_left_out_with_the_reason(tmp_path):
    path = tmp_path / "wide.png"
    Image.fromarray(np.zeros((1, 65_501, 3), np.uint8)).save(path)
    assert Encoding("raw", 256, 90, 1 << 20).encode(path.read_bytes())[1] == (1, 65_501)
    with pytest.raises(NotAnImage, match="65501 x 1 pixels: a JPEG has at most 65,500 on a side; --images=raw stores it"):
        Encoding("jpeg", 256, 90, 1 << 20).encode(path.read_bytes())


def test_the_test_rows_of_a_store_are_kept_for_evaluation(records, tmp_path):
    rows = [dict(row, split="test" if i % 5 == 0 else row["split"]) for i, row in enumerate(records.rows)]
    path = write_rows(records.folder / "tested.csv", rows)
    assert prepare(tmp_path / "store", records, "--images=original", path=path) == 0
    config = runs.composed(["data=store", f"data.path={tmp_path / 'store'}", *SMALL]).data
    theirs = runs.composed(["data=manifest", f"data.path={path}", *SMALL]).data
    from linnaeus.workloads.taxonomy import manifest

    for test in (False, True):
        assert build_source(config, test).fingerprint == manifest.build_source(theirs, test).fingerprint


def test_a_store_is_split_again_by_a_group_that_it_has_kept(records, tmp_path):
    rows = [dict(row, site=f"site {i % 9}") for i, row in enumerate(records.rows)]
    path = write_rows(records.folder / "grouped.csv", rows)
    assert prepare(tmp_path / "store", records, "--images=original", path=path) == 0
    keys = ["data.split_column=null", "data.group_column=site", "data.split_seed=3"]
    assert store_of(tmp_path / "store", *keys).fingerprint == source_of("data=manifest", f"data.path={path}", *keys).fingerprint
    assert not any("columns not used" in note and "site" in note for note in store_of(tmp_path / "store", *keys).notes)
    assert any("columns used" in note and note.endswith(", site as group") for note in store_of(tmp_path / "store", *keys).notes)
    with pytest.raises(ConfigError, match=r"data.group_column: the store does not have 'place'; its columns are 'site'"):
        store_of(tmp_path / "store", "data.group_column=place")


@pytest.mark.parametrize("group", ["site", None])
def test_a_random_split_is_stored_and_every_run_uses_it(group, records, tmp_path, capsys):
    rows = [{name: cell for name, cell in row.items() if name != "split"} for row in records.rows]
    path = write_rows(records.folder / "unsplit.csv", [dict(row, site=f"site {i % 23}") for i, row in enumerate(rows)])
    keys = [f"data.group_column={group or 'null'}", "data.split_seed=5"]
    assert prepare(tmp_path / "store", records, "--images=original", "--val=0.2", "--test=0.2", *keys, path=path) == 0
    printed = capsys.readouterr().out
    split = np.load(tmp_path / "store/split.npy")
    counts = np.bincount(split, minlength=3)
    assert counts.sum() == len(rows) and min(counts[1:]) >= 5 and counts[0] > 50  # the only photograph of a species is in training
    name = [row["path"] for row in rows]
    lines = ["photograph,split", *(f"{n},{('train', 'val', 'test')[side]}" for n, side in zip(name, split, strict=True))]
    (tmp_path / "split.csv").write_text("\n".join(lines) + "\n")
    stated = hashlib.sha256((tmp_path / "split.csv").read_bytes()).hexdigest()
    note = f"random split of the store: {counts[0]} train, {counts[1]} val, {counts[2]} test, seed 5"
    note += f", groups of 'site' (sha256 {stated})" if group else f" (sha256 {stated})"
    assert note in printed
    for more in ((), ("data.split_seed=99", "data.validation_fraction=0.5")):
        used = store_of(tmp_path / "store", *more)
        assert note in used.notes and used.excluded["called test in 'split', neither trained on nor validated on"] == counts[2]
        assert set(used.ids[used.split == 1].tolist()) == {n for n, side in zip(name, split, strict=True) if side == 1}
    tested = build_source(runs.composed(["data=store", f"data.path={tmp_path / 'store'}", *SMALL]).data, test=True)
    assert set(tested.ids[tested.split == 1].tolist()) == {n for n, side in zip(name, split, strict=True) if side == 2}
    assert note not in store_of(tmp_path / "store", "data.split_column=null").notes
    if group:
        sides = {}
        for row, side in zip(split, (f"site {i % 23}" for i in range(len(rows))), strict=True):
            sides.setdefault(side, set()).add(int(row))
        assert all(len(found) == 1 for found in sides.values())
    given = source_of("data=manifest", f"data.path={path}", keys[0], f"data.split_file={tmp_path / 'split.csv'}")
    assert given.fingerprint == store_of(tmp_path / "store").fingerprint
    assert prepare(tmp_path / "again", records, "--images=original", "--val=0.2", "--test=0.2", *keys, path=path) == 0
    assert files(tmp_path / "again") == files(tmp_path / "store")
    with pytest.raises(SystemExit):
        prepare(tmp_path / "store", records, "--images=original", "--val=0.2", "--test=0.2", keys[0], "data.split_seed=6", path=path)
    assert "is a store with other settings or records" in capsys.readouterr().err


def test_a_stored_split_is_that_of_the_doctor_and_of_training(records, tmp_path, capsys):
    rows = [{name: cell for name, cell in row.items() if name != "split"} for row in records.rows]
    path = write_rows(records.folder / "unsplit.csv", [*rows, rows[3]])  # a photograph that occurs twice
    assert prepare(tmp_path / "store", records, "--images=original", "--val=0.2", path=path) == 0
    capsys.readouterr()
    given = [f"data.path={path}", "data.validation_fraction=0.2"]
    assert doctor_cli.main(["manifest", *given, "--no-images", f"--out={tmp_path / 'doctor'}"]) == 0
    sha = re.search(r"sha256 (\w{64})", capsys.readouterr().out)[1]
    assert any(sha in note for note in store_of(tmp_path / "store").notes)
    assert source_of("data=manifest", *given).fingerprint == store_of(tmp_path / "store").fingerprint


def test_the_group_column_of_a_preparation_is_that_of_training_unless_set(records, tmp_path, capsys):
    rows = [{name: cell for name, cell in row.items() if name != "split"} for row in records.rows]
    path = write_rows(records.folder / "sites.csv", [dict(row, site=f"site {i % 9}") for i, row in enumerate(rows)])
    assert prepare(tmp_path / "store", records, "--images=original", "data.group_column=site", path=path) == 0
    for prepared, set_to in (("auto", "site"), ("null", "null")):
        ours = store_of(tmp_path / "store", f"data.group_column={prepared}")
        assert ours.fingerprint == source_of("data=manifest", f"data.path={path}", f"data.group_column={set_to}").fingerprint
    with pytest.raises(SystemExit):
        prepare(tmp_path / "store", records, "--images=original", path=path)
    assert "is a store with other settings or records" in capsys.readouterr().err


def test_a_source_with_other_groups_is_another_source(records, tmp_path, capsys):
    path = write_rows(records.folder / "moved.csv", [dict(row, site=f"site {i % 9}") for i, row in enumerate(records.rows)])
    assert prepare(tmp_path / "store", records, path=path) == 0
    write_rows(path, [dict(row, site=f"site {i % 8}") for i, row in enumerate(records.rows)])
    with pytest.raises(SystemExit):
        prepare(tmp_path / "store", records, path=path)
    assert "is a store with other settings or records" in capsys.readouterr().err


def test_a_misspelt_component_or_rank_is_one_line(records, tmp_path, capsys):
    """Otherwise the store would not have the metadata, and training from it would not miss them."""
    for option, message in (
        ("data.components=[SPATAIL]", "data.components: 'SPATAIL' is not a metadata component; choose from SPATIAL"),
        ("data.ranks=[family,specie]", "data.ranks: 'specie' is not a taxonomic rank of the data; use order, family, genus, species"),
    ):
        with pytest.raises(SystemExit):
            prepare(tmp_path / "store", records, option)
        assert message in (error := capsys.readouterr().err) and error.count("\n") == 1
        assert not (tmp_path / "store").exists()


def test_a_split_that_cannot_be_made_is_one_line(records, tmp_path, capsys):
    few = write_rows(records.folder / "few.csv", [{name: row[name] for name in ("path", "species")} for row in records.rows[:3]])
    for path, options, message in (
        (None, ["--val=0.1"], "--val and --test: the source gives a split; leave them out to keep it, or set data.split_column=null"),
        (few, ["--test=0.0001"], "--test: 0.0001 of 3 photographs leaves no test rows; set a larger fraction"),
    ):
        with pytest.raises(SystemExit):
            prepare(tmp_path / "store", records, *options, path=path)
        assert message in (error := capsys.readouterr().err) and error.count("\n") == 1
        assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    "options, message",
    [
        (["--task=3/2"], "--task 3/2 is not I/N"),
        (["--quality=0"], "--quality is 0; it must be from 1 to 95"),
        (["trainer.threads=1"], "trainer.threads=1 has no effect here"),
        (["data.image_size=64"], "data.image_size=64 has no effect on a store; set it when training starts, with data=store"),
        (["data.folds=5"], "data.folds=5 has no effect on a store"),
        (["data.validation_fraction=0.1"], "data.validation_fraction=0.1 has no effect on a store"),
        (["--val=0.6", "--test=0.4"], "--val 0.6 and --test 0.4 must be shares of the records, from 0 to below 1 in all"),
        (["data.split_seed=3"], "data.split_seed=3 has no effect on a store"),
        (["--images=png"], "invalid choice: 'png'"),
        (["--images=raw", "--quality=50"], "--quality has no effect with --images=raw"),
        (["--images=original", "--short-side=99"], "--short-side has no effect with --images=original"),
        (["data.path=nowhere.csv"], "data.path"),
    ],
)
def test_a_mistake_is_one_line(options, message, records, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        preparation.main(["manifest", str(tmp_path / "store"), *options])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and message in error and error.count("\n") == 1
    assert not (tmp_path / "store").exists()


def test_folders_that_are_not_a_complete_store_are_refused(records, tmp_path, capsys):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file.txt").write_text("mine")
    with pytest.raises(SystemExit):
        prepare(tmp_path / "other", records)
    assert "is not an empty folder" in capsys.readouterr().err and (tmp_path / "other/file.txt").read_text() == "mine"
    with runs.killed(os, "replace", 4):
        prepare(tmp_path / "begun", records)
    with pytest.raises(SystemExit):
        prepare(tmp_path / "begun", records, "--short-side=100")
    assert "was begun with another encoding" in capsys.readouterr().err
    for folder, message in (
        ("begun", "its preparation was interrupted"),
        ("other", "is not a complete store"),
        ("none", "is not a folder"),
    ):
        with pytest.raises(ConfigError, match=message):
            store_of(tmp_path / folder)
    prepare(tmp_path / "begun", records)
    with pytest.raises(SystemExit):
        prepare(tmp_path / "begun", records, "--quality=50")
    assert "is a store with other settings" in capsys.readouterr().err
    (tmp_path / "begun/labels.npy").write_bytes(b"damaged")
    with pytest.raises(ConfigError, match=r"labels.npy.*is not as `linnaeus prepare` wrote it; delete the store"):
        store_of(tmp_path / "begun")


def repeated(store, out, times):
    """Write a store whose records are those of `store`, `times` times, with other names."""
    shutil.copytree(store, out)
    for path in [*out.glob("*.npy"), *out.glob("columns/*.npy")]:
        np.save(path, np.concatenate([np.load(path)] * times))
    names = [f"{i}/{name}" for i in range(times) for name in read_lines(store / "names.txt")]
    write_lines(out / "names.txt", names)
    np.save(out / "digests.npy", digests(names))
    write_record(out, read_record(out))
    return out


def work_of(build):
    """Return the number of calls of functions during `build()`, and of the blocks of memory of Python objects that it leaves."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    gc.collect()  # otherwise the collector frees objects of earlier tests, and calls their finalizers, in one of the measurements
    gc.disable()
    before = sys.getallocatedblocks()
    sys.setprofile(count)
    try:
        kept = build()
    finally:
        sys.setprofile(None)
        gc.enable()
    gc.collect()
    return calls, sys.getallocatedblocks() - before, kept


GROUPED = [["data.split_column=null"], ["data.split_column=null", "data.folds=3", "data.fold=1"]]


@pytest.mark.parametrize("keys", [[], *(pytest.param(keys, marks=pytest.mark.slow) for keys in GROUPED)])
def test_a_start_makes_no_call_and_no_object_per_record(keys, records, tmp_path):
    prepare(tmp_path / "store", records, "--images=raw", "--short-side=16")
    sizes = [10, 1000]  # so many that a tenth of a call per record is far above what threads and caches add: a few hundred calls
    stores = [repeated(tmp_path / "store", tmp_path / f"times{times}", times) for times in sizes]

    def start(config):
        workload = TaxonomyWorkload(config)
        workload.build_datasets(OpsSchedule(resolve_all_schedule_params(config, 100, 10, workload.components)), tmp_path)
        workload.save_dataset_record(tmp_path)
        return workload

    configs = [runs.composed(["data=store", f"data.path={store}", *SMALL, "data.image_size=512", *keys]) for store in stores]
    start(configs[0])  # imports
    (few_calls, few_blocks, _), (calls, blocks, workload) = [work_of(partial(start, config)) for config in configs]
    more = len(workload.data_source.ids) * (1 - sizes[0] / sizes[1])
    assert more > 70_000 and calls - few_calls < 0.1 * more and blocks - few_blocks < 0.1 * more


@pytest.mark.parametrize("form", ["manifest", "webdataset"])
def test_a_source_of_many_records_gives_the_same_store(form, records, tmp_path, monkeypatch):
    path = records.folder / "manifest.csv"
    if form == "webdataset":
        path = tmp_path / "shards"
        sharded(records, path, "gnu")
    for few, name in ((1 << 16, "objects"), (0, "lines")):
        monkeypatch.setattr(column, "FEW", few)
        assert preparation.main([form, str(tmp_path / name), f"data.path={path}", ONE, "--short-side=16"]) == 0
    assert files(tmp_path / "objects") == files(tmp_path / "lines")


def test_a_store_has_a_hash_of_each_original_file(records, tmp_path, capsys):
    folder = tmp_path / "photos"
    shutil.copytree(records.folder, folder, ignore=shutil.ignore_patterns("export"))
    (folder / records.rows[3]["path"]).write_bytes(b"not a photograph")
    options = ["--short-side=16", "data.max_bad_fraction=0.1"]
    with runs.killed(preparation, "finish", 1):
        prepare(tmp_path / "store", records, *options, path=folder / "manifest.csv")
    table = tmp_path / "store/parts/00001.npz"
    with np.load(table) as content:
        changed = dict(content) | {"originals": np.zeros(8, np.uint64)}
    np.savez(table, **changed)  # as an earlier program wrote it
    assert prepare(tmp_path / "store", records, *options, path=folder / "manifest.csv") == 0
    assert "damaged, to be written again: 1 part (1)" in capsys.readouterr().err
    source = store_of(tmp_path / "store")
    rows = np.arange(len(source.ids))[::-3]
    found = source.images.files.take(rows).originals()
    expected = [hashlib.blake2b((folder / name).read_bytes(), digest_size=16).digest() for name in source.ids[rows].tolist()]
    assert [one.tobytes() for one in found] == expected and len(source.ids) == len(records.rows) - 1
    (tmp_path / "store/originals.npy").unlink()
    with pytest.raises(ConfigError, match=r"originals.npy.*is not as `linnaeus prepare` wrote it"):
        store_of(tmp_path / "store")
    write_record(tmp_path / "store", read_record(tmp_path / "store"))  # as in a store of an earlier program
    assert store_of(tmp_path / "store").fingerprint == source.fingerprint and source.images.files.originals() is None


def test_a_process_gets_the_names_of_one_part_only(records, tmp_path):
    names = [row["path"] for row in records.rows]
    sizes = []
    for paths in (names, names * 100):
        writer = PartWriter(tmp_path, FolderFiles(records.folder, TextLines.of(paths)), Encoding("original", 0, 0, 1 << 20), 30)
        sizes.append(len(pickle.dumps(writer.one(1))))
        part = writer.one(1)
        assert [part.files.names[row] for row in part.rows(1)] == [writer.files.names[row] for row in writer.rows(1)]
    assert sizes[0] == sizes[1]
