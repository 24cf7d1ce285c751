"""Tables in every format have the same cells, and a file that is not a table is an error of one line."""

import datetime
import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.manifest.tables import mixed_encoding
from linnaeus.workloads.taxonomy.manifest.tables import table as table_module
from linnaeus.workloads.taxonomy.manifest.tables.table import UNEVEN, read_table

HEADER = ["path", "species", "date"]
ROWS = [["a, b.jpg", "Rosa canina", "2020-01-02"], ["b.jpg", "Échinops ritro", ""], ["c.jpg", "Rosa canina", "2020-01-02"]]

DAMAGED = bytearray(gzip.compress(b"path,species\n" + b"".join(b"%d.jpg,A b%d\n" % (i, i * 7919) for i in range(300))))
DAMAGED[60] ^= 255


def cells(path, names=("species", "path", "date")):
    table = read_table(path, lambda header: names)
    return [[table.columns[name].text()[i] for name in HEADER] for i in range(len(table))]


def write(path, delimiter=",", encoding="utf-8", quote='"'):
    lines = [HEADER, *ROWS]
    text = "\r\n".join(delimiter.join(f"{quote}{cell}{quote}" if delimiter in cell or quote else cell for cell in line) for line in lines)
    path.write_bytes((text + "\r\n\r\n").encode(encoding))
    return path


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "windows-1252"])
def test_delimiters_and_encodings(tmp_path, delimiter, encoding):
    path = write(tmp_path / "m.csv", delimiter, encoding)
    assert cells(path) == ROWS
    notes = read_table(path, lambda header: header).notes
    assert ("windows-1252" in notes[0]) if encoding == "windows-1252" else not notes


@pytest.mark.parametrize(("delimiter", "first"), [(";", b"sep=;\r\n"), (",", b'\xef\xbb\xbf"sep=,"\n'), ("\t", b"SEP=\t\r\n")])
def test_the_line_with_which_excel_names_the_separator_is_not_the_header(tmp_path, delimiter, first):
    path = write(tmp_path / "m.csv", delimiter)
    path.write_bytes(first + path.read_bytes())
    assert cells(path) == ROWS
    if delimiter != "\t":  # in which quotes have no meaning
        path.write_bytes(first + b'path,species\na.jpg,"Rosa\nb.jpg,Bellis\n'.replace(b",", delimiter.encode()))
        with pytest.raises(ConfigError, match=r"m\.csv', line 3: "):
            read_table(path, lambda header: header)


@pytest.mark.parametrize("start", [b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"])
def test_a_workbook_is_named_as_one(tmp_path, start):
    (tmp_path / "photos.csv").write_bytes(start + bytes(100))
    with pytest.raises(ConfigError, match=r"photos.csv' is a workbook of a spreadsheet, or another archive; save the table as CSV"):
        read_table(tmp_path / "photos.csv", lambda header: header)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_only_the_lines_that_are_not_utf8_are_read_as_windows_1252(tmp_path, monkeypatch, end):
    monkeypatch.setattr(mixed_encoding, "CHUNK", 1001)  # cuts lines and letters
    rows = [(f"{i}.jpg", f"Ébène é{i}", "") for i in range(5000)]
    lines = [
        ",".join(row).encode("windows-1252" if i in (7, 4000) else "utf-8") for i, row in enumerate([("path", "species", "date"), *rows])
    ]
    (tmp_path / "m.csv").write_bytes(end.encode().join([*lines, b""]))
    table = read_table(tmp_path / "m.csv", lambda header: header)
    assert table.columns["species"].text().tolist() == [row[1] for row in rows]
    assert table.notes == ("m.csv: 2 lines not in UTF-8, read as windows-1252; the others are in UTF-8",)


def test_compressed_and_long_tables(tmp_path, monkeypatch):
    plain = write(tmp_path / "m.csv")
    (tmp_path / "m.csv.gz").write_bytes(gzip.compress(plain.read_bytes()))
    monkeypatch.setattr(table_module, "CHUNK", 1)  # one row per chunk
    assert cells(tmp_path / "m.csv.gz") == ROWS


def test_quotes_inside_names_of_tab_separated_tables(tmp_path):
    (tmp_path / "m.tsv").write_text('path\tspecies\tdate\na.jpg\t"Foo" bar\t\nb.jpg\tFoo "bar\t\nc.jpg\tx\t\n')
    assert [row[1] for row in cells(tmp_path / "m.tsv")] == ['"Foo" bar', 'Foo "bar', "x"]


def test_rows_with_a_different_number_of_cells_are_counted(tmp_path):
    (tmp_path / "m.csv").write_text("path,species,date\na.jpg,x,\nb.jpg,x\nc.jpg,x,,,\n\nd.jpg,x,\n")
    table = read_table(tmp_path / "m.csv", lambda h: h)
    column = table.columns["species"]
    assert column.values == ["x"] and column.codes.dtype == np.int32  # equal cells share a value
    assert table.excluded == {UNEVEN: 2} and table.columns["path"].text().tolist() == ["a.jpg", "d.jpg"]


@pytest.mark.parametrize("opens", [3, 10, 79])
@pytest.mark.parametrize("closes", [1, 2, 40])
@pytest.mark.parametrize("cell", [1, 2])
def test_two_stray_quotes_do_not_swallow_rows(tmp_path, opens, closes, cell):
    """80 rows, line 1 is the header; the cell of one row gets a quote at its start and that of a later row one at its end."""
    table = [[f"{i}.jpg", f"Rosa {i}", "2020-01-02"] for i in range(80)]
    table[opens][cell] = '"' + table[opens][cell]
    if opens + closes < 80:
        table[opens + closes][cell] += '"'
    (tmp_path / "m.csv").write_text("\n".join(map(",".join, [HEADER, *table])) + "\n")
    with pytest.raises(ConfigError, match=f"line {opens + 2}: .*; correct the quotes"):
        cells(tmp_path / "m.csv")


def test_cells_with_line_breaks_and_quotes_are_read(tmp_path):
    text = 'a.jpg,"First line.\r\nSecond, longer line.\n\n""Third"" line",x\nb.jpg,"5"" high",x\nc.jpg,a 5" pot,x\n'
    (tmp_path / "m.csv").write_text("path,species,date\n" + text)
    assert [row[0] for row in cells(tmp_path / "m.csv")] == ["a.jpg", "b.jpg", "c.jpg"]
    assert [row[1] for row in cells(tmp_path / "m.csv")][1:] == ['5" high', 'a 5" pot']


def test_a_note_of_several_lines_may_have_as_many_commas_as_a_row(tmp_path):
    """The second line has three cells, as the table, but no file name in the first and no number in the second."""
    note = '"Seen at the creek\nshade, wet soil, moss\nwith flowers"'
    (tmp_path / "m.csv").write_text(f"path,species,date\na.jpg,Rosa,x\nb.jpg,Rosa,{note}\nc.jpg,Rosa,y\n")
    assert [row[0] for row in cells(tmp_path / "m.csv")] == ["a.jpg", "b.jpg", "c.jpg"]
    for line in ("d.jpg, Rosa, z", ",Rosa,z"):  # rows that a stray quote has swallowed
        (tmp_path / "m.csv").write_text(f'path,species,date\na.jpg,Rosa,"x\n{line}\nc.jpg,Rosa,y"\n')
        with pytest.raises(ConfigError, match="a quoted cell contains whole rows"):
            cells(tmp_path / "m.csv")


def test_parquet_has_the_same_cells_as_csv(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    columns = {  # name -> values, and the cells they become
        "path": (pa.array(["a.jpg", "b.jpg"]).dictionary_encode(), ["a.jpg", "b.jpg"]),
        "species": (["x", None], ["x", ""]),
        "latitude": ([43.5, float("nan")], ["43.5", ""]),
        "date": ([datetime.date(2021, 4, 27), None], ["2021-04-27", ""]),
        "when": (pa.array([datetime.datetime(2021, 4, 27, 16, 10, 3), None], pa.timestamp("ms")), ["2021-04-27 16:10:03.000", ""]),
        "group": ([7, 8], ["7", "8"]),
        "not read": ([[1], [2]], None),
    }
    pq.write_table(pa.table({name: values for name, (values, _) in columns.items()}), tmp_path / "m.parquet")
    table = read_table(tmp_path / "m.parquet", lambda header: header[:-1])
    assert {name: column.text().tolist() for name, column in table.columns.items()} == {n: c for n, (_, c) in columns.items() if c}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m.csv", b"", "empty"),
        ("m.csv", b"path,species\n", "has a header but no rows; choose"),
        ("m.csv", b"path,species\na, b.jpg,c\nd, e.jpg,f\n", r"no row that can be used: a different number of cells than the header \(2\)"),
        ("m.csv", b"path,path\na,b\n", "the manifest has 2 columns named 'path'"),
        ("m.csv", b"path,\x81\n", "UTF-8"),
        ("m.parquet", b"nonsense", "Parquet"),
        ("m.csv.gz", b"not gzip", "cannot be read"),
        ("m.csv.gz", DAMAGED, "cannot be read as CSV: Error -3 while decompressing"),
        ("m.csv.gz", gzip.compress(b"path,species\n" + b"a" * (1 << 25)), "a line has more than 16777216 characters"),
        ("m.csv.gz", gzip.compress(b"a" * (1 << 25)), "a line has more than 16777216 characters"),
        ("absent.csv", None, "does not exist"),
        ("", None, "is a folder"),
    ],
)
def test_a_file_that_is_not_a_table_is_an_error_of_one_line(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_table(path, lambda header: header)
    assert "\n" not in str(caught.value) and "data.path" in str(caught.value)


def test_a_pipe_in_place_of_a_table_is_an_error_of_one_line(tmp_path):
    os.mkfifo(tmp_path / "m.csv")
    with pytest.raises(ConfigError, match=r"m.csv' is not a file; choose a CSV or Parquet manifest"):
        read_table(tmp_path / "m.csv", lambda header: header)


def test_the_error_about_a_relative_path_names_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"'photos/m.csv' does not exist in the current folder, ") as caught:
        read_table(Path("photos/m.csv"), lambda header: header)
    assert repr(str(tmp_path)) in str(caught.value)


def test_a_parquet_file_whose_names_are_not_text_is_an_error_of_one_line(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "m.parquet"
    pq.write_table(pa.table({"path": ["a"], "species": ["b"]}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"species", b"sp\xf0cies"))
    with pytest.raises(ConfigError, match=r"data.path: .*m.parquet' cannot be read as Parquet: 'utf-8' codec"):
        read_table(path, lambda header: header)
