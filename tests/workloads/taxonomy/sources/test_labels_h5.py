"""`data=labels_h5`: files written to the schema of the original, with a folder and with images.h5; labels, filters, split, metadata."""

import datetime
import os
import pickle

import numpy as np
import pytest
from PIL import Image

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.sources.h5 import h5_file, h5_images
from linnaeus.workloads.taxonomy.sources.h5.h5_metadata import _frequencies, _from_frequencies
from tests.workloads.taxonomy.sources.conftest import METADATA, Records, read_in_process, same_as_manifest, source_of, trains

h5py = pytest.importorskip("h5py")
SCALES = np.array([100.0, 1000.0, 5000.0, 10000.0, 30000.0])
COLUMNS = ("path", "order", "family", "genus", "species", *METADATA)
COUNT = {"out": "out_of_region (in data.filters)", "null": "null_label (in data.filters)", "none": "no label at any rank"}
ORIGINAL = ("data.filters=[]", "data.split_column=null", "data.validation_fraction=0.2", "data.split_seed=0")


def circle(values, period):
    angle = 2 * np.pi * np.asarray(values, dtype=np.float64) / period
    return np.stack([np.sin(angle), np.cos(angle)], axis=1)


def sphere(latitude, longitude):
    lat, lon = np.radians(latitude), np.radians(longitude)
    return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=1)


def numbers(rows, name):
    return np.array([float(row[name] or "nan") for row in rows])


def write(path, identifiers, taxa, **datasets):
    """Write a labels.h5. `taxa`: level -> ids. A dataset may be a pair of an array and its attributes."""
    with h5py.File(path, "w") as file:
        file.create_dataset("img_identifiers", data=list(identifiers), dtype=h5py.string_dtype())
        for level, ids in taxa.items():
            file[f"taxa_L{level}"] = np.asarray(ids, dtype=np.uint32)
        for name, data in datasets.items():
            values, attributes = data if isinstance(data, tuple) else (data, {})
            file[name] = [str(v) for v in values] if np.asarray(values).dtype.kind in "OU" else values
            file[name].attrs.update(attributes)
        file.create_group("metadata").attrs.update(config_json="{}", export_script="export.py")
    return path


def metadata(rows):
    """Return the encoded and the raw metadata of manifest rows, as the original writes them. Each component is missing as a whole."""
    place = numbers(rows, "latitude"), numbers(rows, "longitude")
    day = [datetime.date.fromisoformat(row["date"]).timetuple().tm_yday if row["date"] else np.nan for row in rows]
    hour = [float(row["time"][:2] or "nan") if row["time"] else np.nan for row in rows]
    metres = numbers(rows, "elevation")
    when = [f"{row['date']}T{row['time']}" if row["time"] else row["date"] for row in rows]
    names = ["jd_sin", "jd_cos", "hour_sin", "hour_cos"]
    return {
        "spatial": (np.nan_to_num(sphere(*place)).astype(np.float32), {"method": "unit_sphere", "column_names": ["x", "y", "z"]}),
        "temporal": (np.nan_to_num(np.hstack([circle(day, 365.25), circle(hour, 24)])).astype(np.float32), {"column_names": names}),
        "elevation_broadrange_2": (_frequencies(np.nan_to_num(metres), SCALES).astype(np.float32), {"scales": SCALES}),
        "raw_lat": place[0].astype(np.float32),
        "raw_lon": place[1].astype(np.float32),
        "raw_elevation": metres.astype(np.float32),
        "raw_date_observed": np.array(when, dtype=object),
        "coordinateUncertaintyInMeters": numbers(rows, "uncertainty").astype(np.float32),
        "anomaly_score": np.zeros(len(rows), np.float32),
        "observer_id": np.arange(len(rows), dtype=np.int32) // 2,
    }


@pytest.fixture(scope="module")
def numbered(records):
    """Return the records with numbers as the names of taxa, and rank -> the ids of the rows."""
    rows = [dict(row) for row in records.rows]
    ids = {}
    for level, rank in {10: "species", 20: "genus", 30: "family", 40: "order"}.items():
        names = sorted({row[rank] for row in rows} - {""})
        ids[level] = [100 * level + names.index(row[rank]) if row[rank] else 0 for row in rows]
        for row, taxon in zip(rows, ids[level], strict=True):
            row[rank] = str(taxon or "")
    return Records(records.folder, rows), ids


def test_a_file_with_raw_columns_is_the_manifest(numbered, tmp_path):
    records, ids = numbered
    path = write(tmp_path / "labels.h5", [row["path"] for row in records.rows], ids, **metadata(records.rows))
    there = Records(tmp_path, records.rows)
    for row in records.rows:
        (tmp_path / row["path"]).parent.mkdir(exist_ok=True)
        os.link(records.folder / row["path"], tmp_path / row["path"])
    same_as_manifest(there, "data=labels_h5", f"data.path={path}", *ORIGINAL, columns=COLUMNS)
    summary = trains(tmp_path, "data=labels_h5", f"data.path={path}", "data.filters=[]")
    assert summary["status"] == "finished"


def folder_of_stems(tmp_path, count, size=8):
    for i in range(count):
        Image.fromarray(np.full((size, size, 3), i % 256, np.uint8)).save(tmp_path / f"obs.{i}.jpg")
    return [f"obs.{i}{'.jpg' * (i % 2)}" for i in range(count)]


def generated(count):
    """Return taxa of a tree with holes: a hole at L10 in every 5th row, no label in rows 3 and 53, a gap at L20 in row 7."""
    species = np.arange(count) % 8 + 1000
    taxa = {10: species.copy(), 20: species // 2, 30: species // 4, 40: np.full(count, 9)}
    taxa[40] = species // 4 + 7
    taxa[10][::5] = 0
    for ids in taxa.values():
        ids[[3, 53]] = 0
    taxa[20][7] = 0
    return taxa


def expected_split(valid, seed=42, ratio=0.9):
    order = np.random.RandomState(seed).permutation(len(valid))
    cut = int(len(valid) * ratio)
    return set(np.asarray(valid)[order[:cut]].tolist()), set(np.asarray(valid)[order[cut:]].tolist())


@pytest.mark.parametrize(
    "filters, left_out",
    [
        ("[null_label]", {COUNT["none"]: 2, COUNT["null"]: 24 + 1}),
        ("[]", {COUNT["none"]: 2}),
        ("[null_below]", {COUNT["none"]: 2, "null_below (in data.filters)": 24 + 1}),
        ("[out_of_region,null_label]", {COUNT["out"]: 30, COUNT["none"]: 1, COUNT["null"]: 19}),
        ("[no_spatial]", {"no_spatial (in data.filters)": 40, COUNT["none"]: 1}),
    ],
)
def test_filters_and_split_are_those_of_the_original_to_the_row(tmp_path, filters, left_out):
    count, taxa = 120, generated(120)
    names = folder_of_stems(tmp_path, count)
    os.remove(tmp_path / "obs.11.jpg")
    spatial = sphere(np.linspace(-80, 80, count), np.linspace(-170, 170, count)).astype(np.float32)
    spatial[::3] = 0
    in_region = (np.arange(count) % 4 != 1).astype(np.uint8)
    path = write(tmp_path / "labels.h5", names, taxa, spatial=spatial, in_region=in_region)
    source = source_of("data=labels_h5", f"data.path={path}", f"data.filters={filters}", "data.max_bad_fraction=0.1")
    known = np.stack([taxa[level] > 0 for level in (40, 30, 20, 10)], axis=1)
    keep = known.any(axis=1) & (np.arange(count) != 11)
    if "out_of_region" in filters:
        keep &= in_region == 1
    if "null" in filters:
        keep &= known.all(axis=1)  # every known row is known at the coarsest rank: null_below drops the same rows
    if "no_spatial" in filters:
        keep &= np.arange(count) % 3 != 0
    rows = np.array([int(name.split(".")[1]) for name in source.ids])
    assert rows.tolist() == np.flatnonzero(keep).tolist()  # the order of the file
    train, validation = expected_split(np.flatnonzero(keep))
    assert set(rows[source.split == 0]) == train and set(rows[source.split == 1]) == validation
    assert source.excluded == left_out | {"image file missing": 1}
    assert len(rows) + sum(source.excluded.values()) == count
    for level, rank in {10: "species", 20: "genus", 30: "family", 40: "order"}.items():
        column = source.tree.ranks.index(rank)
        named = [source.tree.names[column][label] if label >= 0 else "" for label in source.labels[:, column]]
        taxa[20][7] = taxa[10][7] // 2  # a hole between known taxa is filled in from the other rows of the species
        assert named == [str(taxon or "") for taxon in taxa[level][rows]]


def test_a_negative_id_is_not_a_taxon(tmp_path):
    """Files of other programs may have -1 for an unknown taxon. It is also null for data.filters."""
    path = write(tmp_path / "labels.h5", folder_of_stems(tmp_path, 12), {"20": np.arange(12) % 2 + 1})
    with h5py.File(path, "a") as file:
        file["taxa_L10"] = np.array([-1, 0, 5, 6] * 3)
    source = source_of("data=labels_h5", f"data.path={path}", "data.filters=[]", "data.split_column=null")
    assert source.tree.names == (("1", "2"), ("5", "6")) and (source.labels[:, 1] >= 0).sum() == 6


def test_names_and_lineages_come_from_a_table_of_taxa(tmp_path):
    species = [0 if i % 6 == 5 else 10 + i % 3 for i in range(24)]
    path = write(tmp_path / "labels.h5", folder_of_stems(tmp_path, 24), {10: species, 20: [1 + i % 3 // 2 for i in range(24)]})
    taxa = [
        "id,parent,rank,name",
        "1,,genus,Quercus",
        "2,,genus,Fagus",
        "10,1,species,robur",
        "11,1,species,alba",
        "12,2,species,sylvatica",
    ]
    (tmp_path / "taxa.csv").write_text("\n".join(taxa))
    keys = (f"data.taxonomy={tmp_path / 'taxa.csv'}", "data.taxon_column=taxon_id", "data.filters=[]")
    source = source_of("data=labels_h5", f"data.path={path}", *keys)
    assert [sorted(names) for names in source.tree.names] == [["Fagus", "Quercus"], ["alba", "robur", "sylvatica"]]
    assert (source.labels[:, 1] < 0).tolist() == [i % 6 == 5 for i in range(24)]  # known by genus alone


def test_the_encoded_vectors_alone_give_the_metadata_back(tmp_path):
    count = 400
    draw = np.random.default_rng(0)
    latitude, longitude = draw.uniform(-90, 90, count), draw.uniform(-180, 180, count)
    latitude[:3], longitude[:3] = [0, 90, -33], [180, 0, 0]
    metres = draw.uniform(-400, 8800, count).astype(np.float32)
    day, hour = np.arange(count) % 366 + 1, np.arange(count) % 24
    names = folder_of_stems(tmp_path, count)
    data = {
        "spatial": sphere(latitude, longitude).astype(np.float32),
        "temporal": np.hstack([circle(day, 365.25), circle(hour, 24)]).astype(np.float32),  # without names: found from the values
        "elevation_a": (_frequencies(metres.astype(np.float64), SCALES).astype(np.float32), {"scales": SCALES}),
    }
    for name in ("spatial", "temporal"):
        data[name][5] = 0
    data["elevation_a"][0][5] = 0
    data["elevation_a"][0][6] = np.tile([0, 1], len(SCALES))
    path = write(tmp_path / "labels.h5", names, {10: np.arange(count) % 4 + 1}, **data)
    given = source_of("data=labels_h5", f"data.path={path}").metadata
    known = np.arange(count) != 5
    np.testing.assert_allclose(sphere(given.latitude, given.longitude)[known], sphere(latitude, longitude)[known], atol=3e-7)
    assert given.latitude[1] == 90 and given.latitude[0] == 0 and abs(given.longitude[0]) == 180
    days = np.where(day == 366, 365 / 366, (day - 1) / 365).astype(np.float32)
    np.testing.assert_array_equal(given.day[known], days[known])
    np.testing.assert_array_equal(given.hour[known], hour[known].astype(np.float32))
    both = known & (np.arange(count) != 6)
    np.testing.assert_allclose(given.elevation[both], metres[both], atol=1e-3)
    for values in vars(given).values():
        assert np.isnan(values[5])
    assert np.isnan(given.elevation[6])


def test_months_zero_metres_and_raw_columns_that_differ_are_noted(tmp_path):
    names = folder_of_stems(tmp_path, 24)
    month = np.arange(24) % 12 + 1
    raw = np.array([f"2021-{m:02d}-05" for m in month], dtype=object)
    raw[:2] = ["", "2021-09-09"]
    metres = np.array([0.0, np.nan, *range(100, 122)], dtype=np.float32)
    path = write(
        tmp_path / "labels.h5",
        names,
        {10: np.arange(24) % 3 + 1},
        temporal=(circle(month, 12).astype(np.float32), {"column_names": [b"month_sin", b"month_cos"]}),
        elevation_x=(_frequencies(np.nan_to_num(metres), SCALES[:2]).astype(np.float32), {"scales": "[100, 1000]"}),
        raw_elevation=metres,
        raw_date_observed=raw,
    )
    source = source_of("data=labels_h5", f"data.path={path}")
    assert source.metadata.elevation[0] == 0 and np.isnan(source.metadata.elevation[1])  # NaN in raw_elevation decides
    assert source.metadata.day[:3].tolist() == pytest.approx([15 / 365, 44 / 365, 63 / 365], abs=1e-6)
    notes = "\n".join(source.notes)
    assert "1 row: raw_date_observed differs from 'temporal', which is used" in notes
    assert "2 rows: a month without a day, the middle of the month is used" in notes


def test_elevations_that_the_scales_do_not_determine_are_missing():
    metres = np.array([-400.0, 12.5, 950.0, 8848.0])
    found, count = _from_frequencies(_frequencies(metres, SCALES[:2]), SCALES[:2])
    assert (count > 1).all()
    found, count = _from_frequencies(_frequencies(metres, SCALES[:4]), SCALES[:4])
    np.testing.assert_allclose(found, metres, atol=1e-6)
    assert (count == 1).all()


def images_file(tmp_path, count=30, **how):
    pixels = np.random.default_rng(1).integers(0, 255, (count, 10, 13, 3), dtype=np.uint8)
    with h5py.File(tmp_path / "images.h5", "w") as file:
        file.create_dataset("images", data=pixels, **how)
    names = ["same" if i in (4, 5) else f"obs{i}" for i in range(count)]
    write(tmp_path / "labels.h5", names, {10: np.arange(count) % 3 + 1, 20: np.arange(count) % 3 // 2 + 1})
    return pixels, ("data=labels_h5", f"data.path={tmp_path / 'labels.h5'}", f"data.images={tmp_path / 'images.h5'}")


@pytest.mark.parametrize("how", [{}, {"chunks": (4, 10, 13, 3), "compression": "gzip"}])
def test_photographs_of_images_h5_are_its_pixels_to_the_row(tmp_path, how):
    pixels, given = images_file(tmp_path, **how)
    source = source_of(*given)
    assert source.ids[4:6].tolist() == ["same", "same#5"]
    for row, image in enumerate(source.images.read(np.arange(30))):
        np.testing.assert_array_equal(image, pixels[row])
    _, validation = expected_split(np.arange(30))
    assert set(np.flatnonzero(source.split == 1)) == validation


def test_a_file_of_images_trains_with_two_workers(tmp_path):
    _, given = images_file(tmp_path)
    assert trains(tmp_path, *given, "trainer.num_workers=2")["status"] == "finished"


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_images_h5_is_closed_before_a_fork_and_not_pickled(tmp_path, start):
    _, given = images_file(tmp_path)
    images = source_of(*given).images.files
    first = images.read(3)
    assert images._file is not None and pickle.loads(pickle.dumps(images))._file is None
    assert read_in_process(images, 3, start) == first
    assert (images._file is None) == (start == "fork")
    assert images.read(3) == first
    assert h5_images._lock.acquire(blocking=False)
    h5_images._lock.release()


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda file: file.pop("img_identifiers"), "data.path: .* does not have strings named img_identifiers"),
        (lambda file: file.pop("taxa_L10"), "data.path: .* has no dataset named taxa_L10"),
        (lambda file: file.update(taxa_L20=np.ones(3, np.uint32)), "data.path: 'taxa_L20' .* must be integers \\[30\\], a row"),
        (lambda file: file.update(spatial=np.ones((30, 2))), "data.path: 'spatial' .* must be numbers \\[30, 3\\]"),
        (lambda file: file.update(temporal=np.ones((30, 3))), "data.path: 'temporal' has 3 columns"),
        (lambda file: file["taxa_L10"].write_direct(np.zeros(30, np.uint32)), "no row of .* is left: no label at any rank \\(30\\)"),
    ],
)
def test_a_file_of_another_form_is_one_line(tmp_path, change, message):
    path = write(tmp_path / "labels.h5", folder_of_stems(tmp_path, 30), {10: np.arange(30) % 3 + 1})
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(ConfigError, match=message) as caught:
        source_of("data=labels_h5", f"data.path={path}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "keys, message",
    [
        (("data.filters=[none]",), "data.filters: 'none' is not a filter; choose from out_of_region"),
        (("data.filters=[out_of_region]",), "data.filters: out_of_region needs a dataset in_region"),
        (("data.filters=[no_spatial]",), "data.filters: no_spatial needs a dataset of it"),
        (("data.images=none.h5",), "data.images: 'none.h5' is not a file"),
        (("data.images=labels.h5",), "data.images: the dataset 'images' of 'labels.h5' is not there; it must be uint8 \\[30, height"),
    ],
)
def test_a_key_that_does_not_fit_is_one_line(tmp_path, monkeypatch, keys, message):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "labels.h5", folder_of_stems(tmp_path, 30), {10: np.arange(30) % 3 + 1})
    with pytest.raises(ConfigError, match=message):
        source_of("data=labels_h5", "data.path=labels.h5", *keys)


def test_a_file_that_is_not_hdf5_is_one_line(tmp_path):
    (tmp_path / "labels.h5").write_bytes(b"not HDF5" * 100)
    with pytest.raises(ConfigError, match=r"data.path: .* cannot be read as HDF5") as caught:
        source_of("data=labels_h5", f"data.path={tmp_path / 'labels.h5'}")
    assert "\n" not in str(caught.value)


def test_zeros_in_the_texts_are_one_line_and_lists_of_zeros_are_read(tmp_path):
    """Check that the entry of zeros, which HDF5 reads in an endless loop, is refused."""
    path = write(tmp_path / "labels.h5", [f"photo {i}.jpg" for i in range(300)], {10: [1, 2] * 150})
    h5_file.check_texts(path, "data.path")
    content = path.read_bytes()
    entry = content.index(b"photo", content.index(b"GCOL") + 200) - 16
    path.write_bytes(content[:entry] + bytes(64) + content[entry + 64 :])
    with pytest.raises(ConfigError, match=r"data.path: .*labels.h5' cannot be read as HDF5: the texts at byte \d+ are damaged"):
        source_of("data=labels_h5", f"data.path={path}")
    with h5py.File(tmp_path / "zeros.h5", "w") as file:
        file.create_dataset("lists", (3,), dtype=h5py.vlen_dtype(np.int64))[0] = np.zeros(40, np.int64)
    h5_file.check_texts(tmp_path / "zeros.h5", "data.path")
