"""Columns whose cells are nearly all distinct are kept as bytes, with the same values and codes, and few bytes for each record."""

import datetime
import pickle
import tracemalloc

import numpy as np
import pytest

from linnaeus.workloads.taxonomy.arrays import text_arrays
from linnaeus.workloads.taxonomy.arrays.text_arrays import digests, first_places, numbered, strings
from linnaeus.workloads.taxonomy.arrays.text_lines import TextLines
from linnaeus.workloads.taxonomy.images.image_files import MISSING, FolderFiles, clean_path
from linnaeus.workloads.taxonomy.manifest.records import column_of
from linnaeus.workloads.taxonomy.manifest.tables import column
from linnaeus.workloads.taxonomy.manifest.tables.column import Column, ColumnBuilder, from_arrow
from linnaeus.workloads.taxonomy.manifest.tables.dates import is_utc
from linnaeus.workloads.taxonomy.manifest.tables.table import read_table

ODD = ["a", " a", "a ", "", "back\\slash", "line\nbreak", "é", "\udcff", "a", "\r", "x\0y", "\\n", "日本", ""]
CELLS = [*ODD, *(f"{i}.jpg" for i in range(30)), "7.jpg", *ODD, *(f" {i}.jpg" for i in range(25, 40))]


@pytest.fixture
def few(monkeypatch):
    """Four distinct cells of a column are Python objects, and seven cells are read together."""
    monkeypatch.setattr(column, "FEW", 4)
    monkeypatch.setattr(column, "CHUNK", 7)


@pytest.fixture(params=["hashes", "one hash"])
def hashes(request, monkeypatch):
    if request.param == "one hash":
        monkeypatch.setattr(text_arrays, "digests", lambda texts: np.zeros(len(texts), np.uint64))


def built(cells: list[str]) -> Column:
    column = ColumnBuilder()
    for cell in cells[:9]:
        column.append(cell)
    column.extend(cells[9:40])
    column.extend(cells[40:])
    assert len(column) == len(cells)
    return column.column()


def test_the_cells_are_those_of_python_objects(few, hashes):
    ours = built(CELLS)
    distinct = list(dict.fromkeys(CELLS))
    assert isinstance(ours.values, TextLines) and isinstance(built(CELLS[:4]).values, list)
    assert list(ours.values) == [cell.strip() for cell in distinct] and ours.codes.dtype == np.int32
    assert ours.codes.tolist() == [distinct.index(cell) for cell in CELLS]
    assert list(column_of(CELLS).values) == list(ours.values)


def test_cells_that_repeat_stay_python_objects(few):
    assert isinstance(built([f"{i % 3}" for i in range(100)]).values, list)


def test_half_of_a_pair_of_surrogates_is_kept_as_an_escape(few):
    assert list(built([*CELLS, "\ud83d\\"]).values)[-1] == "\\ud83d\\"


def test_a_column_of_arrow_is_that_of_its_cells(few):
    pa = pytest.importorskip("pyarrow")
    cells = [cell for cell in CELLS if cell.isprintable()]
    ours = from_arrow(pa.chunked_array([cells[:20], cells[20:]]))
    assert isinstance(ours.values, TextLines) and [ours.values[code] for code in ours.codes] == [cell.strip() for cell in cells]


def test_whole_numbers_that_parquet_stores_as_floats_have_no_exponent():
    """A column of ids with missing cells is often stored as floats, and must equal the ids of a table of taxa or of a split."""
    pa = pytest.importorskip("pyarrow")
    for missing in (None, float("nan")):
        ours = from_arrow(pa.chunked_array([pa.array([12345678901.0, missing, 7.0])]))
        assert [ours.values[code] for code in ours.codes] == ["12345678901", "", "7"]
    assert list(from_arrow(pa.chunked_array([pa.array([43.5, float("nan"), 2.0])])).values) == ["43.5", "", "2"]


@pytest.mark.parametrize(("zone", "utc"), [("+00:00", True), ("Etc/UTC", True), ("GMT", True), ("Europe/London", False), ("+02:00", False)])
def test_the_times_of_a_synonym_of_utc_are_in_utc(zone, utc):
    pa = pytest.importorskip("pyarrow")
    time = datetime.datetime(2021, 1, 1, 10, tzinfo=datetime.UTC)
    (ours,) = from_arrow(pa.chunked_array([pa.array([time], pa.timestamp("s", zone))])).values
    assert is_utc(ours) == utc


def test_numbers_and_first_places_are_those_of_arrays(hashes):
    lines = TextLines.of(CELLS)
    codes, values = numbered(lines)
    assert [values[code] for code in codes] == CELLS and len(set(values)) == len(values)
    plain = [cell for cell in CELLS if cell != "\udcff"]
    assert first_places(TextLines.of(plain)).tolist() == first_places(strings(plain)).tolist() == [plain.index(text) for text in plain]


def test_paths_of_many_files_are_cleaned(tmp_path):
    paths = ["a\\b.jpg", "b.jpg", "x\0y", "c" * 5000]
    files = FolderFiles(tmp_path, TextLines.of(paths))
    assert list(files.names) == [clean_path(path) for path in paths]
    assert list(FolderFiles(tmp_path, TextLines.of(paths[1:2])).take(np.array([0, 0])).names) == ["b.jpg"] * 2


def test_some_of_the_lines_are_pickled_without_the_others():
    lines = TextLines.of(f"{i:09d}" for i in range(10_000))
    some = pickle.dumps(lines[np.array([3, 9_999])])
    assert len(some) < 300 and list(pickle.loads(some)) == ["000000003", "000009999"]


@pytest.mark.slow
def test_a_million_photographs_would_take_a_fifth_of_a_gigabyte(tmp_path, monkeypatch):
    monkeypatch.setattr(column, "FEW", 1000)
    count = 60_000
    (tmp_path / "rows.csv").write_text("path,latitude\n" + "".join(f"{i % 500:05d}/{i:08d}.jpg,{i / 1000 - 30}\n" for i in range(count)))
    tracemalloc.start()
    try:
        table = read_table(tmp_path / "rows.csv", lambda header: header)
        files = FolderFiles(tmp_path, table.columns["path"].values)
        assert (files.sizes() == MISSING).all() and len(digests(files.names)) == count
        assert tracemalloc.get_traced_memory()[1] < 200 * count
    finally:
        tracemalloc.stop()
