"""Splits by dates and from a file, in every source and in a store, and the split that the doctor saves."""

import csv
import datetime
import hashlib
import re

import numpy as np
import pytest

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.doctor import doctor_cli
from linnaeus.workloads.taxonomy.manifest import build_source
from linnaeus.workloads.taxonomy.manifest.splitting import given_split
from linnaeus.workloads.taxonomy.observations import VALIDATION
from linnaeus.workloads.taxonomy.store import prepare_store, store_source
from tests import runs
from tests.workloads.taxonomy.sources.conftest import SMALL, source_of

NO_DATE = "no date, or one that is on both sides of a day in data.split_dates"
WORD = {0: "train", VALIDATION: "val"}


def write(path, rows):
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    return path


@pytest.fixture
def dated(records):
    """Return the path of a manifest whose row i has the date 1 January 2020 + i days, or a part of a date, and its rows."""
    days = [datetime.date(2020, 1, 1) + datetime.timedelta(days=i) for i in range(len(records.rows))]
    rows = [{**row, "date": day.isoformat(), "visit": f"v{i // 2}"} for i, (row, day) in enumerate(zip(records.rows, days, strict=True))]
    for row, text in zip(rows[::9], ("", "2019", "2020-02", "2020-01-30/2020-02-03", "2020-04-01/2020-04-02"), strict=False):
        row["date"] = text
    for row in rows:
        del row["split"]
    return write(records.folder / "dated.csv", rows), rows


def store_of(folder, *keys):
    return store_source.build_source(runs.composed(["data=store", f"data.path={folder}", *SMALL, *keys]).data)


def sides(source):
    """Return the name of each photograph and its side."""
    return dict(zip(source.ids.tolist(), (WORD[side] for side in source.split.tolist()), strict=True))


def expected(text, first):
    """Return the side of a date, in plain words; `first`: side -> its first day."""
    ends = {"": [], "2019": ["2019-01-01", "2019-12-31"], "2020-02": ["2020-02-01", "2020-02-29"]}.get(text, text.split("/"))
    found = {max([(day, side) for side, day in first.items() if end >= day], default=("", "train"))[1] for end in ends}
    return found.pop() if len(found) == 1 else None


@pytest.mark.parametrize(
    "first", [{"val": "2020-02-15"}, {"val": "2020-02-01", "test": "2020-03-01"}, {"val": "2020-01-20", "test": "2020-04-02"}]
)
def test_a_split_by_dates(dated, first):
    path, rows = dated
    given = "data.split_dates={" + ",".join(f"{side}:{day}" for side, day in first.items()) + "}"
    source = source_of("data=manifest", f"data.path={path}", given)
    side = {row["path"]: expected(row["date"], first) for row in rows}
    used = {name: word for name, word in side.items() if word in ("train", "val")}
    assert sides(source).items() <= used.items()
    assert len(used) - len(source.ids) == source.excluded.get("no label at the predicted ranks", 0) < 10  # taxa only in validation
    assert source.excluded.get(NO_DATE, 0) == sum(word is None for word in side.values()) >= 2
    tests = sum(word == "test" for word in side.values())
    assert source.excluded.get("called test in data.split_dates, neither trained on nor validated on", 0) == tests
    counts = {word: list(side.values()).count(word) for word in ("train", "val", "test")}
    assert any(", ".join(f"{n} {word}" for word, n in counts.items() if n) in note for note in source.notes if note.startswith("split by"))


def test_test_rows_by_date_and_a_random_split_of_the_others(dated):
    path, rows = dated
    given = ["data=manifest", f"data.path={path}", "data.split_dates={test:2020-03-01}", "data.components=[SPATIAL]"]
    found, side = source_of(*given), {row["path"]: expected(row["date"], {"test": "2020-03-01"}) for row in rows}
    assert set(sides(found)) == {name for name, word in side.items() if word == "train"} and (found.split == VALIDATION).any()
    tested = build_source(runs.composed([*given, *SMALL]).data, test=True)
    assert {name for name, word in sides(tested).items() if word == "val"} == {name for name, word in side.items() if word == "test"}


@pytest.mark.parametrize(
    "keys, message",
    [
        (["data.split_dates={test:1999-01-01}"], "data.split_dates gives 75 test, but no train rows"),
        (["data.split_dates={train:2020-01-01}"], "data.split_dates: 'train: 2020-01-01' is not the first day of val or test"),
        (["data.split_dates={test:2020-13-01}"], "data.split_dates: 'test: 2020-13-01' is not the first day of val or test"),
        (["data.split_dates={val:2020-05-01,test:2020-01-01}"], "data.split_dates: val must begin before test"),
        (["data.split_dates={test:2020-02-01}", "data.split_column=visit"], "data.split_column and data.split_dates both define the split"),
        (["data.split_dates={test:2020-02-01}", "data.split_file=x.csv"], "data.split_file and data.split_dates both define the split"),
        (["data.split_dates={test:2020-02-01}", "data.date_column=null"], "data.split_dates needs a column of dates"),
        (["data.split_file=absent.csv"], "data.split_file: 'absent.csv' does not exist"),
    ],
)
def test_refusals(dated, keys, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        source_of("data=manifest", f"data.path={dated[0]}", *keys)


def of_file(folder, lines, header="photograph,split"):
    path = folder / "given.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return f"data.split_file={path}"


def test_a_split_from_a_file_in_a_manifest_and_in_a_store(dated, tmp_path):
    path, rows = dated
    word = {row["path"]: ("train", "train", "val", "test", None)[i % 5] for i, row in enumerate(rows)}
    given = of_file(tmp_path, [*(f"{name},{side}" for name, side in word.items() if side), "unknown.jpg,test"])
    source = source_of("data=manifest", f"data.path={path}", given)
    assert sides(source) == {name: side for name, side in word.items() if side in ("train", "val")}
    assert source.excluded["not in the file data.split_file"] == list(word.values()).count(None)
    hashed = hashlib.sha256((tmp_path / "given.csv").read_bytes()).hexdigest()
    assert any(hashed in note and "1 id of the file not in the source, such as 'unknown.jpg'" in note for note in source.notes)
    arguments = ["manifest", str(tmp_path / "store"), f"data.path={path}", "--images=original", "--processes=1"]
    assert prepare_store.main(arguments) == 0
    stored = store_of(tmp_path / "store", given)
    assert sides(stored) == sides(source) and stored.fingerprint == source.fingerprint
    assert prepare_store.main([*arguments[:1], str(tmp_path / "split"), *arguments[2:], given]) == 0
    assert sides(store_of(tmp_path / "split")) == sides(source)


def test_spaces_at_the_start_of_a_folder_are_ignored_as_in_the_cells_of_the_file(tmp_path):
    names = np.array([" Abies alba/1.jpg", "Fagus/1.jpg"], np.dtypes.StringDType())
    (tmp_path / "split.csv").write_text("".join(given_split.split_lines(names, np.array([0, VALIDATION], np.int8))))
    file = given_split.read_split_file(str(tmp_path / "split.csv"))
    assert given_split.file_split(file, names, {}, []).tolist() == [0, VALIDATION]


def test_a_file_of_other_ids(dated, tmp_path):
    path, rows = dated
    visits = sorted({row["visit"] for row in rows})
    given = of_file(tmp_path, [f"{visit},{'val' if i % 4 == 0 else 'train'}" for i, visit in enumerate(visits)], "visit,split")
    found = sides(source_of("data=manifest", f"data.path={path}", given))
    assert found == {row["path"]: "val" if visits.index(row["visit"]) % 4 == 0 else "train" for row in rows}


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
def test_a_start_reads_the_file_once(dated, tmp_path, monkeypatch, encoding):
    path, rows = dated
    path.write_text(path.read_text().rstrip() + "é\n", encoding=encoding)  # a table that is not UTF-8 up to its last line is read again
    given = of_file(tmp_path, [f"{row['path']},{'val' if i % 3 == 0 else 'train'}" for i, row in enumerate(rows)])
    count, read = [], given_split.read_table
    monkeypatch.setattr(given_split, "read_table", lambda file, *rest, **keys: count.append(file) or read(file, *rest, **keys))
    source_of("data=manifest", f"data.path={path}", given)
    assert len(count) == 1
    assert doctor_cli.main(["manifest", f"data.path={path}", given, "--no-images", f"--out={tmp_path / 'doctor'}"]) == 0
    assert len(count) == 2
    assert prepare_store.main(["manifest", str(tmp_path / "store"), f"data.path={path}", given, "--processes=1"]) == 0
    assert len(count) == 3
    store_of(tmp_path / "store", given)
    assert len(count) == 4


@pytest.mark.parametrize(
    "lines, header, message",
    [
        (["a.jpg,train"], "photograph,split", "not one of its 1 id, such as 'a.jpg', is a photograph of the source"),
        (["a.jpg,train", "a.jpg,val"], "photograph,split", "1 id on two sides, such as 'a.jpg'"),
        (["a.jpg,train", "a.jpg ,val"], "photograph,split", "1 id on two sides, such as 'a.jpg'"),
        (["a.jpg,train"], "photograph,side", "has the columns photograph, side; it must have photograph"),
        (["a.jpg,train"], "observer,split", "its ids are of 'observer', which the source does not have"),
        (["a.jpg,train", "b, c.jpg,val"], "photograph,split", "rows that cannot be used: a different number of cells than the header (1)"),
        (["a.jpg,perhaps"], "photograph,split", "'split' contains 'perhaps'; every row must have train, val or test"),
        (["{path},test"], "photograph,split", "data.split_file gives 1 test, but no train rows, which training needs"),
    ],
)
def test_files_that_are_refused(dated, tmp_path, lines, header, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        lines = [line.format(path=dated[1][0]["path"]) for line in lines]
        source_of("data=manifest", f"data.path={dated[0]}", of_file(tmp_path, lines, header))


@pytest.mark.parametrize(
    "keys", [[], ["data.group_column=visit", "data.split_seed=3"], ["data.split_dates={test:2020-03-01}"], ["data.folds=3", "data.fold=2"]]
)
def test_the_doctor_saves_the_split_of_training(dated, tmp_path, capsys, keys):
    path, rows = dated
    given = [f"data.path={path}", "data.image_size=16", *keys]
    assert doctor_cli.main(["manifest", *given, "--no-images", f"--out={tmp_path / 'doctor'}"]) == 0
    saved = tmp_path / "doctor/split.csv"
    assert hashlib.sha256(saved.read_bytes()).hexdigest() in capsys.readouterr().out
    source = source_of("data=manifest", *given)
    with saved.open(newline="") as file:
        found = {row["photograph"]: row["split"] for row in csv.DictReader(file)}
    assert {name: side for name, side in found.items() if side != "test"} == sides(source)
    assert len(found) == len(rows) - source.excluded.get(NO_DATE, 0)
    other = source_of("data=manifest", f"data.path={path}", f"data.split_file={saved}")
    assert sides(other) == sides(source) and np.array_equal(other.labels, source.labels)


def test_the_doctor_counts_the_photographs_on_two_sides_that_a_split_file_must_not_have(dated, tmp_path, capsys):
    path, rows = dated
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, [*rows[0], "split"])
        table.writeheader()
        table.writerows(row | {"split": "train" if i % 3 else "val"} for i, row in enumerate(rows))
        table.writerows(rows[i] | {"split": "train"} for i in (3, 6, 1))  # the last is a training row before, too
    assert doctor_cli.main(["manifest", f"data.path={path}", "--no-images", f"--out={tmp_path / 'doctor'}"]) == 0
    saved = tmp_path / "doctor/split.csv"
    text = " ".join(capsys.readouterr().out.split())
    assert f"data.split_file={saved} uses it after you have removed all but one of the lines of 2 photographs on two sides" in text
    with pytest.raises(ConfigError, match="2 ids on two sides"):
        source_of("data=manifest", f"data.path={path}", "data.split_column=null", f"data.split_file={saved}")


def test_the_doctor_reports_rows_on_no_side_and_no_leaks_of_them(dated, tmp_path):
    path, rows = dated
    given = of_file(tmp_path, [f"{row['path']},{'train' if i % 2 else 'val'}" for i, row in enumerate(rows) if i % 4])
    options = ["manifest", f"data.path={path}", given, "--no-images", f"--out={tmp_path / 'doctor'}"]
    assert doctor_cli.main(options) == 0
    with (tmp_path / "doctor/findings.csv").open(newline="") as file:
        found = [row for row in csv.DictReader(file)]
    assert sum(row["check"] == "on no side of the split" for row in found) == len(range(0, len(rows), 4))
    assert not [row for row in found if "in two splits" in row["check"] and rows[int(row["row"]) - 1]["path"] == rows[0]["path"]]
