"""Records that are not used: a line for each record or range of rows, in bounded memory."""

import csv
import pickle
import tracemalloc

import numpy as np

from linnaeus.workloads.taxonomy.manifest import build_source
from linnaeus.workloads.taxonomy.manifest.tables.table import read_table
from linnaeus.workloads.taxonomy.observations import left_out
from linnaeus.workloads.taxonomy.observations.left_out import LeftOut
from tests import runs


def lines(account, folder):
    account.write(folder / "left_out.csv")
    with (folder / "left_out.csv").open(newline="", encoding="utf-8") as file:
        header, *found = csv.reader(file)
    assert header == ["record", "reason", "records"] and [path.name for path in folder.glob(".tmp*")] == []
    return found


def test_records_are_named_and_neighbouring_rows_share_a_line(tmp_path):
    account = LeftOut()
    account.add("lost", ["a.jpg", 'b "quoted", c.jpg', "two\nlines"])
    account.add("never", [])
    account.add_rows("short", np.array([1, 4, 5, 6, 9]), "table.csv")
    account.add_rows("short", np.array([], dtype=np.int64), "table.csv")
    account.add("undecodable", ["d.jpg"], ["cut short"])
    assert account == {"lost": 3, "short": 5, "undecodable": 1}
    assert lines(account, tmp_path) == [
        ["a.jpg", "lost", "1"],
        ['b "quoted", c.jpg', "lost", "1"],
        ["two\\nlines", "lost", "1"],
        ["row 1 of table.csv", "short", "1"],
        ["rows 4 to 6 of table.csv", "short", "3"],
        ["row 9 of table.csv", "short", "1"],
        ["d.jpg", "cut short", "1"],
    ]


def test_a_later_account_contains_the_earlier_one_and_leaves_it_as_it_is(tmp_path):
    first, other = LeftOut(), LeftOut()
    first.add("lost", ["a"])
    other.add("lost", ["b"])
    second = LeftOut(first)
    second.add("lost", ["c"])
    second.include(other)
    assert first == {"lost": 1} and second == {"lost": 3} and len(lines(first, tmp_path)) == 1
    assert sorted(line[0] for line in lines(second, tmp_path)) == ["a", "b", "c"]
    third = LeftOut({"lost": 3}, tmp_path / "left_out.csv")
    third.add("test", ["d"])
    (tmp_path / "later").mkdir()
    assert sorted(line[0] for line in lines(third, tmp_path / "later")) == ["a", "b", "c", "d"]
    assert pickle.loads(pickle.dumps(third)) == {"lost": 3, "test": 1}


def test_names_beyond_the_limit_are_not_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(left_out, "IN_MEMORY", 1000)
    tracemalloc.start()
    account = LeftOut()
    account.add("lost", (f"{i:06d}.jpg" for i in range(30_000)))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 200_000 and len(lines(account, tmp_path)) == 30_000


def test_rows_of_a_table_have_their_numbers_in_the_file(tmp_path):
    rows = [f"{i}.jpg,s{i % 2}" for i in range(12)]
    rows[2] += ",too many"
    rows[7] = "7.jpg," + "x" * 5000
    rows[8] = ",s1"
    (tmp_path / "m.csv").write_text("\n".join(["path,species", *rows[:5], "", *rows[5:]]) + "\n")
    table = read_table(tmp_path / "m.csv", lambda header: header)
    assert table.row_numbers().tolist() == [1, 2, 4, 5, 6, 7, 9, 10, 11, 12]
    assert [line[0] for line in lines(table.excluded, tmp_path)] == ["row 3 of m.csv", "row 8 of m.csv"]
    for i in range(12):
        (tmp_path / f"{i}.jpg").write_bytes(b"x" if i != 10 else b"")
    config = runs.composed(["data=manifest", f"data.path={tmp_path / 'm.csv'}", "data.max_bad_fraction=0.9", "data.image_size=16"]).data
    source = build_source(config)
    named = {record: reason for record, reason, _ in lines(source.excluded, tmp_path)}
    assert named["row 9"] == "no image path" and named["10.jpg"] == "image file empty"
    assert len(source.ids) + sum(source.excluded.values()) == len(rows)
