"""The command `linnaeus doctor`: its page, its files and its exit status."""

import base64
import csv
import io
import re
import shlex
import zipfile
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from linnaeus.config.load import compose
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.doctor import doctor_cli, times
from linnaeus.workloads.taxonomy.doctor.corrected import check_files, settings, write_corrected
from linnaeus.workloads.taxonomy.doctor.counts import rank_counts
from linnaeus.workloads.taxonomy.doctor.doctor_page import SHOWN_IN_ALL, doctor_page
from linnaeus.workloads.taxonomy.doctor.findings import Finding
from linnaeus.workloads.taxonomy.doctor.inspection import inspect
from linnaeus.workloads.taxonomy.doctor.possible_filters import filter_counts
from linnaeus.workloads.taxonomy.images.url_files import UrlFiles
from linnaeus.workloads.taxonomy.manifest.manifest_source import build_source
from linnaeus.workloads.taxonomy.sources.h5.h5_images import H5Images
from tests.workloads.taxonomy.doctor.conftest import table_findings
from tests.workloads.taxonomy.sources import darwin_core_writer
from tests.workloads.taxonomy.sources.conftest import records
from tests.workloads.taxonomy.sources.test_camtrap_dp import biota_package
from tests.workloads.taxonomy.sources.test_hugging_face import of_records, save
from tests.workloads.taxonomy.sources.test_webdataset import sharded

__all__ = ["records"]  # a fixture


def config_of(folder, name="manifest.csv"):
    return compose(["data=manifest", f"data.path={folder / name}"]).data


@pytest.fixture
def call(rows, inspected, tmp_path, capsys):
    """Return a function that calls the command on the rows and returns its status and its output. Their files are not photographs."""

    def call(*options, images="--no-images"):
        inspected(rows)
        words = ["manifest", f"data.path={tmp_path / 'manifest.csv'}", "--out", str(tmp_path / "out"), *filter(None, [images]), *options]
        status = doctor_cli.main(words)
        return status, capsys.readouterr().out

    return call


def test_findings_are_printed_in_aligned_columns_and_written_row_by_row(call, rows, tmp_path):
    rows[3]["date"] = "2999-01-02"
    rows[8] |= {"latitude": "0", "longitude": "0"}
    status, page = call()
    lines = page.splitlines()
    assert status == 0 and lines[0].endswith("2,000 rows") and max(map(len, lines[:-2])) <= 130 and str(tmp_path) in lines[-1]
    found = {line.split("  ")[1].strip() for line in lines if line.startswith("error")}
    assert found == {"coordinates 0, 0", "date in the future"}
    with (tmp_path / "out/findings.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [(row["row"], row["photograph"], row["check"]) for row in table] == [
        ("9", rows[8]["path"], "coordinates 0, 0"),
        ("4", rows[3]["path"], "date in the future"),
    ]
    assert call("--strict")[0] == 1


def test_rows_have_their_numbers_in_the_file_after_a_row_that_the_reader_leaves_out(rows, inspected, tmp_path, capsys):
    rows = rows[:60]
    rows[8]["date"], rows[20]["path"] = "2999-01-02", rows[10]["path"]
    inspected(rows)
    manifest, out = tmp_path / "manifest.csv", tmp_path / "out"
    header, first, *others = manifest.read_text().splitlines()
    manifest.write_text("\n".join([header, first, "one,cell,too,few", *others]) + "\n")
    assert doctor_cli.main(["manifest", f"data.path={manifest}", "--out", str(out), "--no-images"]) == 0
    with (out / "findings.csv").open() as file:
        table = {row["check"]: row for row in csv.DictReader(file)}
    assert (table["date in the future"]["row"], table["photograph with two taxa"]["row"]) == ("10", "22")
    assert table["photograph with two taxa"]["text"] == "first in row 12"
    assert {"row 10", "row 22"} <= set(re.findall(r"<figcaption>(row \d+)", (out / "doctor.html").read_text()))


def test_the_page_shows_photographs_and_makes_no_request(call, rows, tmp_path):
    for row in range(20):
        rows[row] |= {"date": f"2999-01-0{1 + row % 9}"}
    rows[1]["path"] = "images/<b>.jpg"
    rows[2] |= {"path": "gone.jpg"}
    (tmp_path / "images").mkdir()
    call()
    Image.new("RGB", (600, 400), "teal").save(tmp_path / rows[0]["path"], "JPEG")
    page = doctor_page(
        "records", records := inspect(config_of(tmp_path)), rank_counts(records), filter_counts(records), times.dates(records)
    )
    assert page.count("data:image/webp;base64,") == 1 and page.count("cannot be decoded") == 10 and page.count("no photograph<") == 1
    assert "&lt;b&gt;" in page and "<b>.jpg" not in page and "date=2999-01-01" in page and "and 8 more rows" in page
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)
    titles = re.findall(r"<h2>([^<]+)</h2>", page)
    assert titles == ["Findings", "Ranks", "Filters that are not set", "Rows of the findings"]
    assert all(f'<a href="#s{i}">{title}</a>' in page for i, title in enumerate(titles)) and "<main>" in page  # links, and a margin
    picture = base64.b64decode(re.search(r"base64,([^\"]+)", page)[1])
    assert Image.open(io.BytesIO(picture)).size == (160, 107)
    assert (tmp_path / "out/doctor.html").read_text().count("<figure>") == 12 + 1  # rows of two findings


def test_a_page_has_a_limited_number_of_photographs(rows, inspected):
    records = inspected(rows)
    many = np.arange(2000)
    plain, beside = Finding("plain", "warning", many, "text"), Finding("copy", "note", many, "text", beside=many[::-1])
    for number in (18, 19, 20):
        findings = [*[plain] * number, replace(plain, rows=many[:11]), beside, beside, plain]
        page = doctor_page("title", records, rank_counts(records), filter_counts(records), findings)
        assert page.count('<div class="none">') <= SHOWN_IN_ALL


def test_the_corrected_manifest_has_the_remedies_and_nothing_else_changed(call, rows, inspected, tmp_path):
    rows[3]["date"] = "2999-01-02"
    rows[8] |= {"latitude": "0", "longitude": "0"}
    rows[9]["path"] = "gone.jpg"
    for number, row in enumerate(rows):
        row |= {"comment": f'a "quoted", cell {number}', "site": f"s{number}"}
    rows[1600]["site"] = "s5"  # a leak has no remedy
    fixed = tmp_path / "fixed.csv"
    before = (call()[1], (tmp_path / "manifest.csv").read_bytes())[1]
    status, page = call("--corrected", str(fixed))
    assert status == 0 and f"{fixed}: 1 row left out, 4 cells emptied\nnext: linnaeus data=manifest data.path={fixed}\n" in page
    assert not any(line.endswith(" ") for line in page.splitlines())
    expected = [dict(row) for row in rows]
    expected[3]["date"] = expected[8]["latitude"] = expected[8]["longitude"] = expected[8]["uncertainty"] = ""
    del expected[9]
    with fixed.open() as file:
        assert list(csv.DictReader(file)) == expected
    assert (tmp_path / "manifest.csv").read_bytes() == before
    written = fixed.read_bytes()
    with pytest.raises(SystemExit):
        call("--corrected", str(fixed))
    assert fixed.read_bytes() == written
    assert [finding.check for finding in table_findings(inspect(config_of(tmp_path, "fixed.csv")))] == ["same site in two splits"]


def test_a_source_whose_photographs_a_manifest_cannot_name_has_no_corrected_manifest(rows, inspected):
    check_files(records := inspected(rows))
    images = H5Images("images.h5", records.files.names, np.arange(len(records)), 8, 8)
    with pytest.raises(ConfigError, match=r"--corrected: a manifest cannot name the photographs of this source, which are in data\.images"):
        check_files(replace(records, files=images))


def test_the_settings_of_a_corrected_manifest_read_it_as_the_source_was_read(rows, inspected, tmp_path):
    overrides = ["data.rank_columns={genus: genus, species: species}", "data.latitude_column=null", "data.longitude_column=null"]
    records = inspected(rows, *overrides)
    fixed = tmp_path / "elsewhere" / "fixed.csv"
    fixed.parent.mkdir()
    path = f"data.path={tmp_path / 'manifest.csv'}"
    write_corrected(fixed, records, [], [path, *overrides])
    texts = settings(fixed, records, [path, *overrides])
    assert texts == [f"data.root={tmp_path}", *overrides]
    again = inspect(compose(["data=manifest", f"data.path={fixed}", *texts]).data)
    assert again.tree.ranks == ("genus", "species") and (again.labels == records.labels).all() and (again.sizes > 0).all()
    folder = inspect(compose(["data=image_folder", f"data.path={photograph_folders(tmp_path)}"]).data)
    assert settings(tmp_path / "folders.csv", folder, [])[1:] == ["data.rank_columns={genus:genus,species:species}"]


def test_a_corrected_manifest_keeps_the_groups_that_the_format_has_by_default(tmp_path):
    core = [{"id": f"{i}", "species": ("Fagus sylvatica", "Tilia cordata")[i % 2], "occurrenceID": f"o{i // 4}"} for i in range(8)]
    media = [{"coreid": row["id"], "identifier": f"http://a.org/{row['id']}.jpg"} for row in core]
    for row in core:
        Image.new("RGB", (8, 8)).save(tmp_path / f"{row['id']}.jpg")
    path = darwin_core_writer.write(tmp_path / "archive", darwin_core_writer.archive(core, media))
    given = ["data=darwin_core", f"data.path={path}", f"data.root={tmp_path}"]
    for own, column in (([], "occurrenceID"), (["data.group_column=auto"], "occurrenceID"), (["data.group_column=null"], None)):
        texts = settings(tmp_path / "fixed.csv", inspect(compose([*given, *own]).data), own)
        assert compose(["data=manifest", "data.path=fixed.csv", *texts]).data.group_column == column


def test_a_corrected_manifest_has_the_links_of_photographs_and_no_password(rows, inspected, tmp_path):
    inspected(rows)
    for row in rows[:20]:
        row["path"] = f"file://{tmp_path / row['path']}"
    with (tmp_path / "manifest.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    records = inspect(config_of(tmp_path))
    check_files(records)
    write_corrected(tmp_path / "fixed.csv", records, [], [])
    assert settings(tmp_path / "fixed.csv", records, []) == []
    assert inspect(config_of(tmp_path, "fixed.csv")).files.names.tolist() == [row["path"] for row in rows]
    remote = replace(records, files=UrlFiles("https://me:secret@host/photos?token=1", records.files.names))
    assert settings(tmp_path / "fixed.csv", remote, []) == ["data.root='https://host/photos'"]


def test_a_corrected_manifest_reads_photographs_in_a_zip_file(records, tmp_path):
    biota_package(records, tmp_path)
    package = tmp_path / "the package (1).zip"
    with zipfile.ZipFile(package, "w") as archive:
        for name in ("datapackage.json", "deployments.csv", "media.csv", "observations.csv"):
            archive.write(tmp_path / name, f"top/{name}")
        for row in records.rows:
            archive.write(records.folder / row["path"], f"top/{row['path']}")
    given = ["data=camtrap_dp", f"data.path='{package}'", "data.image_size=16"]
    camera = inspect(compose(given).data, every_column=True)
    check_files(camera)
    (command,) = write_corrected(tmp_path / "fixed.csv", camera, [], given[1:]).splitlines()[1:]
    words = shlex.split(command.removeprefix("next: linnaeus "))
    assert words[2] == f"data.root='zip://top::{package}'"
    ours, theirs = (build_source(compose(settings).data) for settings in (words, given))
    assert ours.fingerprint == theirs.fingerprint and len(ours.ids) == len(records.rows)


@pytest.mark.parametrize("form", ["webdataset", "arrow", "parquet", "another column"])
def test_a_corrected_manifest_reads_photographs_in_tar_files_and_in_data_sets(records, tmp_path, form):
    folder = tmp_path / "the data (1)"
    folder.mkdir()
    name, more = "webdataset" if form == "webdataset" else "hugging_face", []
    table = of_records(records) if form != "webdataset" else None
    if form == "webdataset":
        sharded(records, folder, "gnu")
    elif form == "parquet":
        pq.write_table(table, folder / "data.parquet", row_group_size=7)
    else:
        first = [{"bytes": b"another", "path": f"{i}.png"} for i in range(len(records.rows))]
        both = table if form == "arrow" else table.add_column(0, "first", pa.array(first, table.schema.field("image").type))
        save(folder, both, shards=3)
        more = [] if form == "arrow" else ["data.image_column=image"]
    given = [f"data={name}", f"data.path='{folder}'", "data.image_size=16", *more]
    source = inspect(compose(given).data, every_column=True)
    check_files(source)
    (command,) = write_corrected(tmp_path / "fixed.csv", source, [], given[1:]).splitlines()[1:]
    words = shlex.split(command.removeprefix("next: linnaeus "))
    assert f"data.root='{name}:{folder}'" in words
    ours, theirs = (build_source(compose(settings).data) for settings in (words, given))
    assert ours.fingerprint == theirs.fingerprint and len(ours.ids) == len(records.rows)
    left_out = replace(Finding("x", "error", np.array([1, 5]), "text"), leave_out=True)
    write_corrected(tmp_path / "fewer.csv", source, [left_out], given[1:])
    fewer = build_source(compose([word.replace("fixed.csv", "fewer.csv") for word in words]).data)
    assert fewer.ids.tolist() == [name for row, name in enumerate(theirs.ids.tolist()) if row not in (1, 5)]
    assert all((fewer.images.read(np.array([row]))[0] == theirs.images.read(np.array([row + 2]))[0]).all() for row in (6, 20))


def test_photographs_that_another_source_does_not_have_are_named(records, tmp_path):
    sharded(records, tmp_path / "tars", "gnu")
    row = records.rows[0]
    rows = [row["path"], "gone.jpg"]
    (tmp_path / "m.csv").write_text("path,species\n" + "".join(f"{name},Quercus robur\n" for name in rows))
    given = ["data=manifest", f"data.path={tmp_path / 'm.csv'}"]
    with pytest.raises(ConfigError, match=r"data.root: .*tars.* does not have 1 photograph of the manifest: 'gone.jpg'"):
        inspect(compose([*given, f"data.root='webdataset:{tmp_path / 'tars'}'"]).data)
    with pytest.raises(ConfigError, match=r"data.root: .*nowhere.* does not contain a tar file"):
        inspect(compose([*given, f"data.root='webdataset:{tmp_path / 'nowhere'}*'"]).data)


def photograph_folders(folder):
    for name in ("Rosa canina", "Rosa alba", "Salix alba"):
        (folder / "folders" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(folder / "folders" / name / "1.jpg")
    return folder / "folders"


def test_names_of_ranks_in_brackets_are_text_on_the_terminal(tmp_path, capsys):
    photograph_folders(tmp_path / "photos")
    levels = "data.levels=['fam[/x]ily','sp[bold]ecies']"
    command = ["image_folder", f"data.path={tmp_path / 'photos'}", levels, "--out", str(tmp_path / "out"), "--no-images"]
    assert doctor_cli.main(command) == 0
    page = capsys.readouterr().out
    assert "\nfam[/x]ily " in page and "\nsp[bold]ecies " in page and "without a sp[bold]ecies" in page


def test_clean_records_and_notes_are_not_strict_errors(call, rows):
    status, page = call("--strict")
    assert status == 0 and "nothing was found" in page
    for number, row in enumerate(rows):
        row["site"] = f"s{number // 4}"
    status, page = call("--strict", "data.split_column=null")
    assert status == 0 and "groups in a random split" in page


def test_photographs_are_looked_at_unless_the_table_alone_is_checked(call, rows, tmp_path):
    del rows[40:]
    rows[30] |= {"path": rows[29]["path"]}
    assert "damaged photograph" not in call()[1]
    page = call("--processes=1", images=None)[1]
    assert [line.split()[:4] for line in page.splitlines() if "damaged" in line] == [["error", "damaged", "photograph", "40"]]
    with (tmp_path / "out/findings.csv").open() as file:
        texts = {row["text"] for row in csv.DictReader(file) if row["check"] == "damaged photograph"}
    assert len(texts) == 1 and "not an image" in texts.pop()


@pytest.mark.parametrize(
    "words, message",
    [
        (["--processes=0"], "--processes is 0; it must be from 1 to 1024"),
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
