"""Cells become numbers, or become missing for a counted reason."""

import datetime
from types import SimpleNamespace

import numpy as np
import pytest

from linnaeus.workloads.taxonomy.manifest.cleaning import Tally, clean_metadata, clean_name, day_of_year, hour_of_day
from linnaeus.workloads.taxonomy.manifest.table import read_table

COLUMNS = {"latitude": "lat", "longitude": "lon", "uncertainty": "unc", "date": "date", "time": "time", "elevation": "elev"}


def config(columns, elevation_missing=None):
    return SimpleNamespace(**{f"{name}_column": column for name, column in columns.items()}, elevation_missing=elevation_missing)


def cleaned(tmp_path, lines, elevation_missing=None, delimiter=","):
    text = "\n".join(delimiter.join(line) for line in [["path", "lat", "lon", "unc", "date", "time", "elev"], *lines])
    (tmp_path / "m.csv").write_text(text + "\n")
    table = read_table(tmp_path / "m.csv", lambda header: header)
    tally = Tally(table.columns["path"].text())
    return clean_metadata(table, config(COLUMNS, elevation_missing), tally), tally


def row(lat="10", lon="20", unc="30", date="2021-07-02", time="12:30", elev="40"):
    return ["x.jpg", lat, lon, unc, date, time, elev]


def test_a_valid_row_is_not_changed(tmp_path):
    metadata, tally = cleaned(tmp_path, [row()])
    values = [getattr(metadata, name)[0] for name in ("latitude", "longitude", "uncertainty", "day", "hour", "elevation")]
    np.testing.assert_allclose(values, [10, 20, 30, 182 / 365, 12.5, 40], rtol=1e-6)
    assert tally.counts == {} and metadata.latitude.dtype == np.float32


@pytest.mark.parametrize(
    ("cells", "missing", "reason"),
    [
        ({"lat": "90.01"}, {"latitude", "longitude", "uncertainty"}, "latitude outside"),
        ({"lon": "-180.5"}, {"latitude", "longitude", "uncertainty"}, "longitude outside"),
        ({"lat": "0", "lon": "0.0"}, {"latitude", "longitude", "uncertainty"}, "suspicious"),
        ({"lat": "north"}, {"latitude", "longitude", "uncertainty"}, "latitude: not a number"),
        ({"lat": "inf"}, {"latitude", "longitude", "uncertainty"}, "latitude: not a number"),
        ({"lat": "1_0"}, {"latitude", "longitude", "uncertainty"}, "latitude: not a number"),
        ({"unc": "-80"}, {"uncertainty"}, "negative uncertainty"),
        ({"unc": "106807033"}, {"uncertainty"}, "beyond half the Earth"),
        ({"date": "2021-02-30"}, {"day"}, "impossible date"),
        ({"date": "2021-04"}, {"day"}, "no day"),
        ({"date": "2021"}, {"day"}, "no month"),
        ({"date": "27/04/2021"}, {"day"}, "date: not a date"),
        ({"date": "2021-01-01/2021-06-01"}, {"day"}, "longer than a month"),
        ({"time": "25:00"}, {"hour"}, "impossible time"),
        ({"time": "noon"}, {"hour"}, "time: not a time"),
        ({"time": "12:00:00Z"}, {"hour"}, "UTC"),
        ({"elev": "12000"}, {"elevation"}, "impossible elevation"),
        ({"elev": "1200 m"}, {"elevation"}, "elevation: not a number"),
        ({"elev": "0.0"}, {"elevation"}, "elevation of 0"),
        ({"lat": ""}, {"latitude", "longitude", "uncertainty"}, None),
        ({"elev": "NA", "date": "null", "time": "NaN", "unc": "unknown"}, {"elevation", "day", "hour", "uncertainty"}, None),
        ({"lat": "0", "lon": "0.5"}, set(), None),
        ({"elev": "-3"}, set(), None),
    ],
)
def test_impossible_cells_are_missing_and_counted(tmp_path, cells, missing, reason):
    metadata, tally = cleaned(tmp_path, [row(**cells), row()], elevation_missing=0.0)
    names = ("latitude", "longitude", "uncertainty", "day", "hour", "elevation")
    assert {name for name in names if np.isnan(getattr(metadata, name)[0])} == missing
    assert not any(np.isnan(getattr(metadata, name)[1]) for name in names)
    assert len(tally.counts) == (reason is not None)
    if reason:
        assert reason in next(iter(tally.counts)) and list(tally.counts.values()) == [1] and "first x.jpg" in tally.notes()[0]


def test_zero_elevation_is_a_value_unless_set_as_missing_and_semicolon_tables_have_decimal_commas(tmp_path):
    metadata, _ = cleaned(tmp_path, [row(lat="43,5", elev="0.0")], delimiter=";")
    assert metadata.elevation[0] == 0.0 and metadata.latitude[0] == 43.5


def test_midnight_in_every_row_is_missing(tmp_path):
    metadata, tally = cleaned(tmp_path, [row(time="00:00:00")] * 3)
    assert np.isnan(metadata.hour).all() and list(tally.counts.values()) == [3]
    metadata, tally = cleaned(tmp_path, [row(time="00:00"), row(time="13:00")])
    assert metadata.hour.tolist() == [0.0, 13.0] and not tally.counts


DATES = {
    (2020, 12, 31): ["2020-12-31"],
    (2021, 1, 1): ["2021-01-01", "2020-12-30/2021-01-03"],
    (2021, 4, 6): ["2021-04-01/2021-04-11", "2021-04-01/11"],
    (2021, 4, 7): ["2021-4-7", "2021/04/07", "20210407"],
    (2021, 4, 27): ["2021-04-27T16:10:03+02:00", "2021-04-27 16:10", "2021:04:27 16:10:03", "2021-04-27T08:00:00/2021-04-27T09:00:00"],
}


@pytest.mark.parametrize("date", DATES)
def test_formats_of_dates(date):
    expected, start = datetime.date(*date), datetime.date(date[0], 1, 1)
    for text in DATES[date]:
        assert day_of_year(text) == pytest.approx((expected - start) / (datetime.date(date[0] + 1, 1, 1) - start)), text


@pytest.mark.parametrize("text", ["", "x", "0000-00-00", "2021-13-01", "2021-04-05/2021-04-01", "2021-04-01/x", "9999-99", "12:30", "/"])
def test_a_text_that_is_not_a_date_gives_a_reason(text):
    assert isinstance(day_of_year(text), str)


HOURS = {"16:30": 16.5, "06:15:36": 6.26, "2021-04-27T16:30:00": 16.5, "2021-04-27 16:30+02:00": 16.5, "T16:30": 16.5, "23:59:60": 24}


@pytest.mark.parametrize("text", HOURS)
def test_formats_of_times(text):
    assert hour_of_day(text) == pytest.approx(HOURS[text], abs=1e-3) and hour_of_day(text) < 24


@pytest.mark.parametrize("text", ["2021-04-27", "24:00", "12", "", "2021-04-27T10:00:00Z"])
def test_a_text_that_is_not_a_local_time_gives_a_reason(text):
    assert isinstance(hour_of_day(text), str)


def test_names_are_cleaned():
    assert all(clean_name(cell) == "" for cell in ("Unknown", "NA", "\\N", "unidentified", "Quercus sp.", "Quercus spp"))
    names = {"  Rosa   canina ": "Rosa canina", "Wasp": "Wasp", "Nasua": "Nasua", "E\u0301chinops": "\u00c9chinops"}
    assert [clean_name(cell) for cell in names] == list(names.values())


def test_a_real_museum_table(shared_data, tmp_path):
    """555 oaks: latitude on 458, date on 319, elevation 0.0 means missing, every time is midnight."""
    source = shared_data("tables/quercus_dwca/occurrence.txt")
    names = ("decimalLatitude", "decimalLongitude", None, "eventDate", "eventTime", "minimumElevationInMeters")
    table = read_table(source, lambda header: ["id", *filter(None, names)])
    tally = Tally(table.columns["id"].text())
    metadata = clean_metadata(table, config(dict(zip(COLUMNS, names)), 0.0), tally)
    assert len(table) == 555 and table.malformed == 0
    assert np.isfinite(metadata.latitude).sum() == 458
    partial = sum(count for reason, count in tally.counts.items() if reason.startswith("date:"))
    assert (np.isfinite(metadata.day).sum(), partial) == (208, 111)  # 319 rows have a date, a third of them without a day
    assert not (metadata.elevation == 0).any() and np.nanmin(metadata.elevation) > 0
    assert np.isnan(metadata.hour).all() and any("midnight" in reason for reason in tally.counts)
