"""Columns are recognised by their names, each use is printed, and a column that cannot be read is an error with the way to read it."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.biota.__main__ import biota_config, export
from linnaeus.workloads.taxonomy.manifest import build_source
from linnaeus.workloads.taxonomy.manifest.columns import plain_name
from linnaeus.workloads.taxonomy.observations import TRAIN, VALIDATION

OAKS = Path(__file__).resolve().parents[5] / "shared/data/tables/quercus_dwca/occurrence.txt"
ALL = ["SPATIAL", "TEMPORAL", "ELEVATION"]
QUANTITIES = ("latitude", "longitude", "uncertainty", "day", "hour", "elevation")
PLAIN = ("latitude", "longitude", "uncertainty", "date", "time", "elevation")
DARWIN_CORE = (
    "decimalLatitude",
    "dwc:decimalLongitude",
    "coordinateUncertaintyInMeters",
    "eventDate",
    "eventTime",
    "minimumElevationInMeters",
)
WRITTEN = ("Lat (deg)", "LON", "positional_accuracy", "observed_on", "Local time", "Altitude [m]")
CELLS = ("43.5", "4.25", "30", "2021-07-02", "12:30", "400")


def rows(count=40, **extra):
    return [{"path": f"{i}.png", "genus": f"G{i % 2}", "species": f"S{i % 4}"} | extra for i in range(count)]


def lines_of(source, text):
    return [note for note in source.notes if text in note]


def refusal(build_rows, table, **keys):
    with pytest.raises(ConfigError) as caught:
        build_rows(table, **keys)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 400
    return message


@pytest.mark.parametrize("names", [PLAIN, DARWIN_CORE, WRITTEN])
def test_metadata_are_recognised_by_name_and_printed(build_rows, names):
    source = build_rows(rows(**dict(zip(names, CELLS, strict=True))), components=ALL)
    values = [getattr(source.metadata, name)[7] for name in QUANTITIES]
    np.testing.assert_allclose(values, [43.5, 4.25, 30, 182 / 365, 12.5, 400], rtol=1e-6)
    printed = lines_of(source, "columns used:")[0]
    assert all(name in printed for name in names) and not lines_of(source, "columns not used")
    assert lines_of(source, "ranks to predict: genus (2), species (4)")
    assert lines_of(source, f"rows with metadata: spatial {len(source.ids)}, temporal {len(source.ids)}, elevation {len(source.ids)} of")


def test_a_recognised_column_can_be_another_or_none(build_rows):
    table = rows(latitude="1", longitude="2", date="2021-07-02", other="2021-01-01", elevation="400")
    keys = {"components": ALL, "date_column": "other", "latitude_column": None, "elevation_column": None}
    source = build_rows(table, **keys)
    assert np.isnan(source.metadata.longitude).all() and np.isnan(source.metadata.elevation).all() and not source.metadata.day.any()
    assert lines_of(source, "columns used: path as image, genus, species, other as date")
    assert lines_of(source, "columns not used: latitude, longitude, date, elevation")


def test_a_latitude_alone_and_columns_of_components_that_are_not_read_are_not_used(build_rows):
    source = build_rows(rows(lat="1", elevation="high", note="x"), components=["SPATIAL"])
    assert np.isnan(source.metadata.latitude).all()
    assert lines_of(source, "columns not used: lat, elevation (ELEVATION is not in data.components), note")


@pytest.mark.skipif(not OAKS.exists(), reason=f"needs the real data in {OAKS}")
def test_a_darwin_core_archive(tmp_path, manifest_config):
    """555 rows; 458 have coordinates, and 376 an elevation of 0, which means that it is missing."""
    header, *specimens = OAKS.read_text(encoding="utf-8").splitlines()
    lines = ["path\t" + header, *(f"{i}.png\t{row}" for i, row in enumerate(specimens))]
    (tmp_path / "oaks.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for i in range(len(specimens)):
        Image.new("RGB", (2, 2)).save(tmp_path / f"{i}.png")
    keys = {"components": ALL, "rank_columns": {"species": "specificEpithet"}}
    source = build_source(manifest_config(tmp_path / "oaks.tsv", **keys))
    assert np.isfinite(source.metadata.latitude).sum() == 458 and np.isfinite(source.metadata.day).sum() > 200
    assert lines_of(source, "elevation of exactly 0, kept (data.elevation_missing=0 sets it to missing): 376 of 555 rows")
    printed = lines_of(source, "columns used:")[0]
    assert all(name in printed for name in ("decimalLatitude as latitude", "eventDate as date", "minimumElevationInMeters as elevation"))
    assert lines_of(source, "'occurrenceID' may be a group") and "scientificName" in lines_of(source, "columns not used:")[0]


def test_our_own_export_is_read_whole(tmp_path, manifest_config):
    export(biota_config(train=60, validation=20, size=8), tmp_path / "out")
    source = build_source(manifest_config(tmp_path / "out/manifest.csv", components=ALL))
    assert (source.split == VALIDATION).sum() <= 20 and (source.split == TRAIN).sum() > 40
    assert all(np.isfinite(getattr(source.metadata, name)).any() for name in QUANTITIES)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"date": "27/04/2021"}, "'27/04/2021' (not a date); set \"data.date_format='%d/%m/%Y'\", or set data.date_column=null"),
        ({"date": "04/05/2021 16:10"}, "set \"data.date_format='%d/%m/%Y %H:%M'\" or \"data.date_format='%m/%d/%Y %H:%M'\""),
        ({"date": "27 April 2021"}, "data.date_format='%d %B %Y'"),
        ({"eventDate": "Apr 27, 2021"}, "data.date_format='%b %d, %Y'"),
        (
            {"date": "spring"},
            "none of the 40 values of 'date' can be used, such as 'spring' (not a date); set data.date_format to their",
        ),
        ({"date": "2021"}, "(no month); set data.date_column=null to train without dates"),
        ({"date": "45413"}, "such as '45413' (not a date); they may be day numbers of a spreadsheet: there, format the cells as dates"),
        ({"time": "noon"}, "data.time_column: none of the 40 values of 'time' can be used, such as 'noon' (not a time); write local times"),
        ({"latitude": "43°30'36\"N", "longitude": "4"}, "write decimal degrees with a point, 43.510000 for this one"),
        ({"latitude": "3", "longitude": "4°30.6'W"}, "-4.510000 for this one, or set data.latitude_column=null data.longitude_column=null"),
        ({"latitude": "43,5", "longitude": "4"}, "43.500000 for this one"),
        ({"latitude": "4812345", "longitude": "4"}, "'4812345' (latitude outside [-90, 90]); write decimal degrees"),
        ({"latitude": "0", "longitude": "0.0"}, "(coordinates 0, 0); set data.keep_zero_coordinates=true"),
        ({"elevation": "400 m"}, "'400 m' (not a number); write metres with a point"),
    ],
)
def test_a_column_without_a_usable_value_is_an_error_with_the_way_to_read_it(build_rows, cells, message):
    assert message in refusal(build_rows, rows(**cells), components=ALL)


def test_dates_and_times_in_a_given_format(build_rows):
    table = rows(date="27/04/2021 16:30")
    table[3] |= {"date": "2021-04-27"}
    source = build_rows(table, components=ALL, date_format="%d/%m/%Y %H:%M")
    assert source.metadata.day[0] == pytest.approx(116 / 365) and np.isnan(source.metadata.day[3])
    assert lines_of(source, "date: not in the format '%d/%m/%Y %H:%M', set to missing: 1 of 40 rows, first 3.png")
    assert lines_of(source, "time of day in 'date' is not read (data.time_column=date reads it): 39 of 40")
    timed = build_rows(table, components=ALL, date_format="%d/%m/%Y %H:%M", time_column="date")
    assert timed.metadata.hour[0] == 16.5 and not lines_of(timed, "is not read")
    for wrong in ("%m/%Y", "day", "%d/%d/%Y", "%Q", "%"):
        assert "is not a strptime format" in refusal(build_rows, table, components=ALL, date_format=wrong)
    assert "data.date_format has no effect" in refusal(build_rows, rows(), date_format="%d/%m/%Y")


def test_a_long_name_of_a_column_takes_no_time():
    """A file that is not a table may have a first line of a million brackets, whose search would take an hour."""
    assert plain_name("a" * 1_000_000) == "a" * 200 and plain_name("[" * 1_000_000) == ""


def test_a_column_split_is_used_and_its_test_rows_are_not(build_rows):
    table = [row | {"Split": ("test", "val", "train", "train")[i // 2 % 4]} for i, row in enumerate(rows())]
    source = build_rows(table)
    assert source.ids[source.split == VALIDATION].tolist() == [f"{i}.png" for i in range(40) if i // 2 % 4 == 1]
    assert source.excluded == {"called test in 'Split', neither trained on nor validated on": 10}
    assert lines_of(source, "10 rows left out: called test in 'Split', neither trained on nor validated on")
    assert not lines_of(source, "has no effect") and lines_of(
        build_rows(table, validation_fraction=0.4), "data.validation_fraction=0.4 has no effect: 'Split' has validation rows"
    )
    without = build_rows([row for row in table if row["Split"] != "val"], validation_fraction=0.4)
    used = {int(name.removesuffix(".png")) // 2 % 4 for name in without.ids}
    assert used == {2, 3} and (without.split == VALIDATION).any() and lines_of(without, "does not contain validation rows; data")
    table[0] |= {"Split": "maybe"}
    assert "'Split' contains 'maybe'; every row must have train, val or test; or set data.split_col" in refusal(build_rows, table)
    assert lines_of(build_rows(table, split_column=None), "columns not used: Split")


def test_a_column_that_looks_like_a_group_or_a_split_is_named(build_rows):
    table = [row | {"observationID": f"o{i // 8}" + " " * (i % 2), "fold": "1"} for i, row in enumerate(rows())]
    source = build_rows(table)
    assert lines_of(source, "'observationID' may be a group, and is not used: training and validation share 4 of its 5 values")
    assert lines_of(source, "data.group_column=observationID keeps each on one side")
    assert lines_of(source, "'fold' may be a split, and is not used; data.split_column=fold uses it")
    assert not lines_of(build_rows(table, group_column="observationID"), "may be a group")


@pytest.mark.parametrize("name", ["observation_id", "occurrenceID", "individual", "eventID", "event", "group", "Recorded by", "site"])
def test_names_of_groups(build_rows, name):
    assert lines_of(build_rows(rows(**{name: "a"})), f"{name!r} may be a group")


def test_ranks_must_be_coarse_to_fine(build_rows):
    table = [row | {"coarse": f"c{i % 3}", "fine": f"f{i % 9}"} for i, row in enumerate(rows())]
    order = {"species": "species", "genus": "genus"}
    assert "species, genus must be listed coarse to fine: genus, species" in refusal(build_rows, table, rank_columns=order)
    order = {"Fine": "fine", "Coarse": "coarse"}
    assert "Fine (column 'fine') has 9 names where Coarse (column 'coarse') has 3" in refusal(build_rows, table, rank_columns=order)
    swapped = {"genus": "species", "species": "genus"}
    assert "genus (column 'species') has 4 names where species" in refusal(build_rows, table, rank_columns=swapped)
    assert build_rows(table, rank_columns={"Coarse": "coarse", "Fine": "fine"}).tree.sizes == (3, 9)


def test_paths_that_lead_out_of_the_folder_are_named(build_rows, tmp_path):
    table = rows()
    (tmp_path / "in").mkdir()
    table[0] |= {"path": f"{tmp_path}/0.png"}
    table[1] |= {"path": "../1.png"}
    table[2] |= {"path": "in/../2.png"}
    source = build_rows(table, max_bad_fraction=0.9)
    assert len(lines_of(source, "2 image paths outside of the folder")) == 1 and lines_of(source, "such as '../1.png'")


def test_a_long_cell_takes_its_own_length_once(write_manifest, manifest_config):
    table = [row | {"who": f"w{i % 100}"} for i, row in enumerate(rows(400))]
    write_manifest(table)
    table[0] |= {"species": "s" * 100_000}
    table[1] |= {"who": "w" * 4000}
    table[2] |= {"path": f"in/{'p' * 3000}.png"}
    path = write_manifest(table, photographs=False)
    tracemalloc.start()
    source = build_source(manifest_config(path, group_column="who", max_bad_fraction=0.1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4e6  # bytes; 160 MB if the 100,000 characters are the width of every row, 6 MB if the 4,000 are
    assert source.excluded == {"a cell of more than 4096 characters": 1, "image file missing": 1}


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"image_column": "p" * 9000},
        {"split_column": "long"},
        {"date_column": "long"},
        {"weight_column": "long"},
        {"ranks": ["x" * 9000]},
        {"date_format": "y" * 9000, "date_column": "species"},
        {"rank_columns": {"a": "x" * 9000}},
        {"root": "r" * 9000},
    ],
)
def test_messages_of_long_values_are_short(build_rows, keys):
    table = [row | {"long": f"{i} " + "v" * 3000, "c" * 70_000: "1"} for i, row in enumerate(rows())]
    if not keys:
        table = [{name.replace("genus", "x").replace("species", "y"): cell for name, cell in row.items()} for row in table]
    refusal(build_rows, table, components=ALL, **keys)


def test_plain_names():
    names = {"dwc:eventDate": "eventdate", " Lat (°N) ": "lat", "GPS_Latitude": "gpslatitude", "Höhe": "höhe"}
    assert [plain_name(name) for name in names] == list(names.values())
