"""The command `linnaeus doctor`: its page, its files and its exit status."""

import csv

import pytest

from linnaeus.workloads.taxonomy.doctor import doctor_cli


@pytest.fixture
def call(rows, inspected, tmp_path, capsys):
    """Return a function that calls the command on the rows and returns its status and its output."""

    def call(*options):
        inspected(rows)
        status = doctor_cli.main(["manifest", f"data.path={tmp_path / 'manifest.csv'}", "--out", str(tmp_path / "out"), *options])
        return status, capsys.readouterr().out

    return call


def test_findings_are_printed_in_aligned_columns_and_written_row_by_row(call, rows, tmp_path):
    rows[3]["date"] = "2999-01-02"
    rows[8] |= {"latitude": "0", "longitude": "0"}
    status, page = call()
    lines = page.splitlines()
    assert status == 0 and lines[0].endswith("2,000 rows") and max(map(len, lines)) <= 130
    found = {line.split("  ")[1].strip() for line in lines if line.startswith("error")}
    assert found == {"coordinates 0, 0", "date in the future"}
    with (tmp_path / "out/findings.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [(row["row"], row["photograph"], row["check"]) for row in table] == [
        ("9", rows[8]["path"], "coordinates 0, 0"),
        ("4", rows[3]["path"], "date in the future"),
    ]
    assert call("--strict")[0] == 1


def test_clean_records_and_notes_are_not_strict_errors(call, rows):
    status, page = call("--strict")
    assert status == 0 and "nothing was found" in page
    for number, row in enumerate(rows):
        row["site"] = f"s{number // 4}"
    status, page = call("--strict", "data.split_column=null")
    assert status == 0 and "groups in a random split" in page


@pytest.mark.parametrize(
    "words, message",
    [
        (["data.path=nowhere.csv"], "nowhere.csv' does not exist"),
        (["trainer.threads=1"], "trainer.threads=1 has no effect here"),
        (["--colour"], "unrecognized arguments: --colour"),
    ],
)
def test_a_mistake_is_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        doctor_cli.main(["manifest", *words])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and message in error and error.count("\n") == 1
    assert not (tmp_path / "doctor").exists()
