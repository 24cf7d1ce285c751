"""Test that the doctor finds each planted defect of photographs and no others; its measures are equal for every kind of image files."""

import csv
import io
import zipfile

import numpy as np
import pytest
from PIL import Image

from linnaeus.config.load import compose
from linnaeus.workloads.taxonomy.arrays.text_arrays import strings
from linnaeus.workloads.taxonomy.biota.__main__ import biota_config, export
from linnaeus.workloads.taxonomy.doctor import pixels
from linnaeus.workloads.taxonomy.doctor.duplicate_photographs import duplicate_findings
from linnaeus.workloads.taxonomy.doctor.inspection import inspect
from linnaeus.workloads.taxonomy.doctor.photograph_checks import photograph_findings
from linnaeus.workloads.taxonomy.doctor.pixels import measure, measure_rows
from linnaeus.workloads.taxonomy.images.image_files import FolderFiles
from linnaeus.workloads.taxonomy.sources.folders.zip_files import ZipFiles
from linnaeus.workloads.taxonomy.store.store_files import StoreFiles

LIMIT = 1 << 24


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """Return a folder with 60 training and 20 validation photographs of biota, 64 x 64, and the rows of its manifest."""
    folder = tmp_path_factory.mktemp("biota") / "export"
    export(biota_config(train=60, validation=20, size=64), folder)
    with (folder / "manifest.csv").open(newline="") as file:
        return folder, list(csv.DictReader(file))


@pytest.fixture
def planted(exported, tmp_path):
    """Return the rows, each a separate observation, and functions that return, replace and examine their photographs."""
    folder, originals = exported
    rows = [dict(row, observation=f"o{i}") for i, row in enumerate(originals)]
    changed = {}
    original = lambda i: Image.open(folder / originals[i]["path"])

    def replace(i, image, kind="PNG", **options):
        content = io.BytesIO()
        image.save(content, kind, **options)
        changed[i] = content.getvalue()
        return changed[i]

    def examine(*settings):
        (tmp_path / "images").mkdir(exist_ok=True)
        for i, row in enumerate(rows):
            data = changed.get(i) or (folder / originals[i]["path"]).read_bytes()
            (tmp_path / row["path"]).write_bytes(data)
        with (tmp_path / "manifest.csv").open("w", newline="") as file:
            table = csv.DictWriter(file, rows[0])
            table.writeheader()
            table.writerows(rows)
        overrides = ["data=manifest", f"data.path={tmp_path / 'manifest.csv'}", "data.image_size=64", *settings]
        records = inspect(compose(overrides).data)
        measured = measure_rows(records.files, records.sizes, LIMIT, 1)
        findings = photograph_findings(records, measured) + duplicate_findings(records, measured)
        return {finding.check: finding for finding in findings}

    replace.bytes = changed
    return rows, original, replace, examine


def rows_of(findings):
    return {check: finding.rows.tolist() for check, finding in findings.items()}


def test_nothing_is_found_in_good_photographs(planted):
    *_, examine = planted
    assert not examine()


def test_each_defect_of_pixels_is_found(planted):
    _, original, replace, examine = planted
    cut = replace(0, original(0), "JPEG")
    replace.bytes[0] = cut[: len(cut) // 2]
    replace.bytes[1] = b"<html>not found</html>"
    replace(2, original(2).resize((20, 20)))
    replace(3, original(3).resize((64, 256)))
    replace(4, original(4).point(lambda value: value // 4))
    replace(5, original(5).point(lambda value: 244 + value // 24))
    patches = np.random.default_rng(0).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    replace(6, Image.fromarray(patches).resize((64, 64), Image.Resampling.BICUBIC))
    replace(7, Image.new("RGB", (64, 64), (90, 120, 60)))
    replace(8, original(8).convert("L"))
    findings = examine()
    found = rows_of(findings)
    assert set(found.pop("empty photograph")) - {5} == {7}  # hardly any levels and colours are left near white
    assert found == {
        "damaged photograph": [0, 1],
        "tiny photograph": [2],
        "odd shape": [3],
        "dark photograph": [4],
        "blurred photograph": [6],
        "bright photograph": [5],
        "grey photograph": [5, 8],
    }
    damaged = findings["damaged photograph"]
    assert damaged.severity == "error" and damaged.leave_out and "truncated" in damaged.details[0] and "not an image" in damaged.details[1]
    assert findings["odd shape"].details == ("64 x 256 pixels",) and findings["grey photograph"].severity == "note"


def test_copies_are_found_within_a_split_and_across_splits(planted):
    rows, original, replace, examine = planted
    taxon = ("order", "family", "genus", "species")
    sides = [row["split"] for row in rows]
    rows.sort(key=lambda row: row["split"])  # 60 of training, then 20 of validation
    assert [row["split"] for row in rows] == sides
    other = next(i for i in range(20, 60) if rows[i]["order"] != rows[2]["order"])
    for copy, of in ((10, 0), (other, 2), (61, 1)):
        replace(copy, original(of), "PNG")
        replace(of, original(of), "PNG")
    rows[10] |= {rank: rows[0][rank] for rank in taxon}
    smaller = lambda i: original(i).resize((52, 52)).point(lambda value: min(255, value + 6))
    for copy, of in ((15, 3), (16, 4), (62, 5)):
        replace(copy, smaller(of), "JPEG", quality=70)
    rows[16]["observation"] = rows[4]["observation"]
    findings = examine()
    assert rows_of(findings) == {
        "same bytes in two splits": [61],
        "same bytes": [10],
        "same bytes, two taxa": [other],
        "near duplicate in two splits": [62],
        "near duplicate": [15],
    }
    beside = {check: finding.beside.tolist() for check, finding in findings.items()}
    assert beside == {
        "same bytes in two splits": [1],
        "same bytes": [0],
        "same bytes, two taxa": [2],
        "near duplicate in two splits": [5],
        "near duplicate": [3],
    }
    assert findings["same bytes"].details[0] == f"row 1, {rows[0]['path']}"
    assert [f.severity for f in findings.values()] == ["error", "warning", "error", "warning", "note"]
    without = rows_of(examine("data.split_column=null"))
    assert without["same bytes"] == [10, 61] or without["same bytes, two taxa"] == [other, 61]
    assert without["near duplicate"] == [15, 62]


def test_a_copy_of_a_row_that_training_leaves_out_is_kept(planted):
    rows, original, replace, examine = planted
    validation = next(i for i in range(1, 80) if rows[i]["split"] != rows[0]["split"])
    for row in (1, validation):
        replace(row, original(0), "PNG")
    replace(0, original(0), "PNG")
    assert rows_of(examine())["same bytes in two splits"] == [validation]
    for row in (0, 1):
        rows[row] |= dict.fromkeys(("order", "family", "genus", "species"), "")
    assert examine() == {} and examine("data.split_column=null") == {}


def test_a_photograph_of_several_rows_is_read_once_and_is_no_copy_of_itself(planted, monkeypatch):
    rows, _, _, examine = planted
    rows[70] = dict(rows[70], path=rows[3]["path"])
    read = []
    monkeypatch.setattr(FolderFiles, "read", lambda files, row, read=read, old=FolderFiles.read: read.append(row) or old(files, row))
    assert not examine() and len(read) == len(set(read)) == 79


def test_a_file_that_cannot_be_read_is_a_finding(planted, monkeypatch):
    *_, examine = planted

    def read(files, row, old=FolderFiles.read):
        if row == 5:
            raise OSError(5, "Input/output error")
        return old(files, row)

    monkeypatch.setattr(FolderFiles, "read", read)
    findings = examine()
    assert rows_of(findings) == {"damaged photograph": [5]} and findings["damaged photograph"].details == ("Input/output error",)


def same_measures(found, expected, names):
    return all(np.array_equal(getattr(found, name), getattr(expected, name)) for name in names)


def test_measures_do_not_depend_on_the_container_or_on_the_order_of_the_blocks(exported, tmp_path, monkeypatch):
    folder, rows = exported
    names = [row["path"] for row in rows[:30]]
    everything = np.arange(30)
    expected = measure(FolderFiles(folder, names), everything, LIMIT, 1)
    assert (expected.width == 64).all() and (expected.reasons == "").all() and len(set(expected.content.tolist())) == 30
    monkeypatch.setattr(pixels, "BLOCK", 7)
    monkeypatch.setattr(pixels, "each_in_processes", lambda task, blocks, processes: map(task, reversed(blocks)))
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        for name in names:
            archive.write(folder / name, name)
    zipped = measure(ZipFiles(tmp_path / "photos.zip", names, ""), everything, LIMIT, 1)
    assert same_measures(zipped, expected, vars(expected))
    (tmp_path / "parts").mkdir()
    raw = [np.asarray(Image.open(folder / name)).tobytes() for name in names]
    (tmp_path / "parts/00000.bin").write_bytes(b"".join(raw))
    place = np.stack([np.zeros(30), np.arange(30) * len(raw[0]), np.full(30, len(raw[0]))], axis=1).astype(np.int64)
    stored = measure(StoreFiles(tmp_path, strings(names), place, np.full((30, 2), 64, np.int32)), everything, LIMIT, 1)
    assert same_measures(stored, expected, [name for name in vars(expected) if name != "content"])


def test_sizes_are_those_of_the_file_not_of_the_small_picture(tmp_path):
    Image.effect_noise((400, 300), 80).convert("RGB").save(tmp_path / "wide.jpg")
    Image.effect_noise((90, 700), 80).convert("RGB").save(tmp_path / "high.png")
    found = measure(FolderFiles(tmp_path, ["wide.jpg", "high.png"]), np.arange(2), LIMIT, 1)
    assert found.width.tolist() == [400, 90] and found.height.tolist() == [300, 700] and found.grey.all()
