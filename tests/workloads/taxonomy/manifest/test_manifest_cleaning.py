"""Cells become numbers, or become missing for a counted reason."""

import datetime
from types import SimpleNamespace

import numpy as np
import pytest

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.arrays.text_lines import TextLines
from linnaeus.workloads.taxonomy.manifest.metadata_columns import clean_metadata
from linnaeus.workloads.taxonomy.manifest.tables.cleaning import Tally, clean_name, value_numbers
from linnaeus.workloads.taxonomy.manifest.tables.column import Column
from linnaeus.workloads.taxonomy.manifest.tables.dates import day_of_year, hour_of_day
from linnaeus.workloads.taxonomy.manifest.tables.table import read_table

COLUMNS = {"latitude": "lat", "longitude": "lon", "uncertainty": "unc", "date": "date", "time": "time", "elevation": "elev"}
QUANTITIES = ("latitude", "longitude", "uncertainty", "day", "hour", "elevation")
PLACE = set(QUANTITIES[:3])
MISSING = {"lat": PLACE, "lon": PLACE, "unc": {"uncertainty"}, "date": {"day"}, "time": {"hour"}, "elev": {"elevation"}}


def cleaned(tmp_path, lines, delimiter=",", **keys):
    text = "\n".join(delimiter.join(line) for line in [["path", *COLUMNS.values()], *lines])
    (tmp_path / "m.csv").write_text(text + "\n")
    table = read_table(tmp_path / "m.csv", lambda header: header)
    tally = Tally(table.columns["path"].text())
    columns = {f"{name}_column": column for name, column in COLUMNS.items()}
    config = SimpleNamespace(**columns | {"elevation_missing": None, "keep_zero_coordinates": False, "date_format": None} | keys)
    return clean_metadata(table, config, tally), tally


def row(lat="10", lon="20", unc="30", date="2021-07-02", time="12:30", elev="40"):
    return ["x.jpg", lat, lon, unc, date, time, elev]


def test_a_valid_row_is_not_changed(tmp_path):
    metadata, tally = cleaned(tmp_path, [row()])
    values = [getattr(metadata, name)[0] for name in QUANTITIES]
    np.testing.assert_allclose(values, [10, 20, 30, 182 / 365, 12.5, 40], rtol=1e-6)
    assert tally.counts == {} and metadata.latitude.dtype == np.float32


@pytest.mark.parametrize(
    ("column", "cells", "reason"),
    [
        ("lat", ["90.01", "-91"], "latitude outside"),
        ("lat", ["north", "inf", "1_0"], "latitude: not a number"),
        ("lon", ["-180.5"], "longitude outside"),
        ("unc", ["-80"], "negative uncertainty"),
        ("unc", ["106807033"], "beyond half the Earth"),
        ("date", ["2021-02-30"], "impossible date"),
        ("date", ["2021-13"], "impossible date"),
        ("date", ["2021-04/2021-05"], "longer than a month"),
        ("date", ["2021-04-27/2021-05"], "longer than a month"),
        ("date", ["2021"], "no month"),
        ("date", ["27/04/2021"], "date: not a date"),
        ("date", ["2021-01-01/2021-06-01"], "longer than a month"),
        ("time", ["25:00"], "impossible time"),
        ("time", ["noon"], "time: not a time"),
        ("time", ["00:00:00Z", "2021-07-02T00:00Z"], "midnight in UTC"),
        ("elev", ["12000", "-9999", "-9999.0"], "impossible elevation"),
        ("elev", ["1200 m"], "elevation: not a number"),
        ("elev", ["0.0"], "elevation of 0"),
    ],
)
def test_impossible_cells_are_missing_and_counted(tmp_path, column, cells, reason):
    metadata, tally = cleaned(tmp_path, [*(row(**{column: cell}) for cell in cells), row()], elevation_missing=0.0)
    for name in QUANTITIES:
        assert np.isnan(getattr(metadata, name)).tolist() == [name in MISSING[column]] * len(cells) + [False]
    assert list(tally.counts.values()) == [len(cells)] and reason in next(iter(tally.counts)) and "first x.jpg" in tally.notes()[0]


def test_null_cells_are_missing_and_not_counted_and_only_coordinates_that_are_both_0_are_suspicious(tmp_path):
    cells = [row(lat=""), row(elev="NA", date="null", time="NaN", unc="unknown"), row(lat="0", lon="0.5"), row(elev="-3")]
    metadata, tally = cleaned(tmp_path, cells, elevation_missing=0.0)
    missing = [{name for name in QUANTITIES if np.isnan(getattr(metadata, name)[i])} for i in range(4)]
    assert missing == [PLACE, {"elevation", "day", "hour", "uncertainty"}, set(), set()] and not tally.counts
    zero = [row(lat="0", lon="0.0"), row()]
    metadata, tally = cleaned(tmp_path, zero)
    assert np.isnan([metadata.latitude[0], metadata.longitude[0], metadata.uncertainty[0]]).all()
    assert "coordinates 0, 0 (kept with data.keep_zero_coordinates=true), set to missing: 1 of 2 rows" in tally.notes()[0]
    metadata, tally = cleaned(tmp_path, zero, keep_zero_coordinates=True)
    assert metadata.latitude[0] == metadata.longitude[0] == 0 and not tally.counts


def test_zero_elevation_is_a_value_unless_set_as_missing_and_semicolon_tables_have_decimal_commas(tmp_path):
    metadata, _ = cleaned(tmp_path, [row(lat="43,5", elev="0.0")], delimiter=";")
    assert metadata.elevation[0] == 0.0 and metadata.latitude[0] == 43.5


@pytest.mark.parametrize("month, days", [("2019-05", "01/31"), ("2021-2", "01/28"), ("2020-02", "01/29"), ("2021-12/12", "01/31")])
def test_a_month_is_the_interval_of_its_days(month, days):
    year, number = month.partition("/")[0].split("-")
    assert day_of_year(month) == day_of_year(f"{year}-{number.zfill(2)}-{days}")
    assert day_of_year("2019-05") == day_of_year("2019-05-16")


DAY = [f"2020-05-01T{minute // 60:02d}:{minute % 60:02d}:00" for minute in range(5, 1440, 8)]  # 180 times, none at a full hour


@pytest.mark.parametrize(
    "others, midnights, missing",
    [
        (DAY, 3, 3),
        (DAY, 2, 0),
        ([*DAY, *[f"2020-05-01 {hour:02d}:00:00" for hour in range(1, 24)]], 10, 0),
        ([*DAY, *[f"2020-05-01 {hour:02d}:00:00" for hour in range(1, 24)]], 11, 11),
        (DAY * 16, 20, 0),  # 2,900 rows: two a minute
        (DAY * 16, 21, 21),
    ],
)
def test_midnight_is_missing_if_it_is_far_more_frequent_than_by_chance(others, midnights, missing, tmp_path):
    times = ["2020-05-01T00:00:00"] * midnights + others
    metadata, tally = cleaned(tmp_path, [row(time=time) for time in times])
    assert np.flatnonzero(np.isnan(metadata.hour)).tolist() == list(range(missing))
    assert [count for reason, count in tally.counts.items() if "local time of exactly 00:00:00" in reason] == [missing][: missing > 0]


def test_midnight_in_every_row_is_missing(tmp_path):
    metadata, tally = cleaned(tmp_path, [row(time="00:00:00")] * 3)
    assert np.isnan(metadata.hour).all() and list(tally.counts.values()) == [3]
    metadata, tally = cleaned(tmp_path, [row(time="00:00"), row(time="13:00")])
    assert metadata.hour.tolist() == [0.0, 13.0] and not tally.counts


def test_times_in_utc_become_local_solar_times(tmp_path):
    cells = [
        row(lon="-75", time="2021-07-02T03:30:00Z"),
        row(lon="", time="12:00Z"),
        row(lon="150.0", time="17:00 UTC"),
        row(time="12:30+00:00"),
    ]
    metadata, tally = cleaned(tmp_path, cells)
    np.testing.assert_array_equal(metadata.hour, [22.5, np.nan, 3, 12.5])
    assert [note.rpartition(",")[0] for note in tally.notes()][:2] == [
        "time in UTC without a longitude, set to missing: 1 of 4 rows",
        "time in UTC, changed to local solar time by the longitude: 2 of 4 rows",
    ]
    with pytest.raises(ConfigError, match=r"data\.time_column: .* such as '12:00Z' \(time in UTC without a longitude\); write local times"):
        cleaned(tmp_path, [row(lon="", time="12:00Z")])


@pytest.mark.parametrize("form", ["%d/%m/%Y %H:%MZ", "%d/%m/%Y %H:%M%z"])
def test_times_in_utc_in_a_given_format_become_local_solar_times(tmp_path, form):
    cells = [row(lon="179", date="27/04/2021 13:00Z"), row(lon="-75", date="27/04/2021 14:00Z")]
    metadata, tally = cleaned(tmp_path, cells, time_column="date", date_format=form)
    np.testing.assert_allclose(metadata.hour, [13 + 179 / 15 - 24, 9], rtol=1e-5)
    np.testing.assert_allclose(metadata.day, [117 / 365, 116 / 365], rtol=1e-6)
    assert "time in UTC, changed to local solar time by the longitude: 2 of 2 rows, first x.jpg" in tally.notes()


def test_dates_in_utc_become_those_of_the_local_solar_time(tmp_path):
    cells = {  # date, time and longitude -> the local date and hour
        ("2024-02-29", "13:00Z", "179.5"): ("2024-03-01", 0.9667),
        ("2023-12-31", "12:30 UTC", "180"): ("2024-01-01", 0.5),
        ("2024-01-01", "11:30Z", "-180"): ("2023-12-31", 23.5),
        ("2024-03-01", "05:00Z", "-172.5"): ("2024-02-29", 17.5),
        ("2024-03-01", "12:00Z", "180"): ("2024-03-02", 0.0),
        ("2024-03-01", "12:00Z", "-180"): ("2024-03-01", 0.0),
        ("2024-03-01", "11:59:59Z", "179.9999999"): ("2024-03-01", 23.9997),
        ("2024-03-01", "04:59:59.9Z", "-75"): ("2024-02-29", 23.9997),
        ("2024-03-01T05:00:00Z", "05:00Z", "-172.5"): ("2024-02-29", 17.5),
        ("2024-02-29T17:30:00-11:30", "05:00Z", "-172.5"): ("2024-02-29", 17.5),  # the date contains a local time
        ("2024-03-01", "05:00+00:00", "-172.5"): ("2024-03-01", 5.0),
        ("", "05:00Z", "-172.5"): ("", 17.5),
        ("0001-01-01", "05:00Z", "-172.5"): ("", 17.5),  # there is no earlier date
    }
    metadata, tally = cleaned(tmp_path, [row(date=date, time=time, lon=lon) for date, time, lon in cells])
    np.testing.assert_allclose(metadata.hour, [hour for _, hour in cells.values()], atol=1e-3)
    expected = [np.float32(day_of_year(date) if date else np.nan) for date, _ in cells.values()]
    np.testing.assert_array_equal(metadata.day, expected)
    assert [n for reason, n in tally.counts.items() if reason.startswith("date in UTC")] == [5, 3]
    assert (metadata.hour[~np.isnan(metadata.hour)] < 24).all()


def test_a_date_that_differs_from_that_of_its_time_in_utc_is_the_local_date(tmp_path):
    """Exports of iNaturalist have the local date in `observed_on`, and date and time in UTC in `time_observed_at`."""
    cells = {  # date, time and longitude -> the local date and hour
        ("2019-05-01", "2019-05-02 01:30:00 UTC", "-120"): ("2019-05-01", 17.5),
        ("2019-05-02", "2019-05-01 21:30:00 UTC", "150"): ("2019-05-02", 7.5),
        ("2019-05-02", "2019-05-02 01:30:00 UTC", "-120"): ("2019-05-01", 17.5),  # the date is in UTC, too
        ("2019-05-01", "2019-05-01 20:30:00 UTC", "-120"): ("2019-05-01", 12.5),
    }
    metadata, tally = cleaned(tmp_path, [row(date=date, time=time, lon=lon) for date, time, lon in cells])
    np.testing.assert_allclose(metadata.hour, [hour for _, hour in cells.values()], rtol=1e-5)
    np.testing.assert_array_equal(metadata.day, [np.float32(day_of_year(date)) for date, _ in cells.values()])
    assert [n for reason, n in tally.counts.items() if reason.startswith("date in UTC")] == [1]


@pytest.mark.parametrize("seconds", range(0, 86400, 3607))
def test_the_day_and_the_hour_at_any_longitude_are_those_of_the_shifted_time(tmp_path, seconds):
    start = datetime.datetime(2023, 12, 31) + datetime.timedelta(seconds=seconds + 1)
    degrees = [-180, -179.9, -90.3, -15, -0.1, 0, 0.1, 15, 90.3, 179.9, 180]
    metadata, _ = cleaned(tmp_path, [row(date=f"{start:%Y-%m-%d}", time=f"{start:%H:%M:%S}Z", lon=str(lon)) for lon in degrees])
    for lon, day, hour in zip(degrees, metadata.day.tolist(), metadata.hour.tolist(), strict=True):
        local = start + datetime.timedelta(hours=lon / 15)
        assert hour == pytest.approx(local.hour + local.minute / 60 + local.second / 3600, abs=1e-3)
        assert day == np.float32(day_of_year(f"{local:%Y-%m-%d}"))


DATES = {
    (2020, 12, 31): ["2020-12-31", "Thu Dec 31 00:00:00 CET 2020"],
    (2021, 1, 1): ["2021-01-01", "2020-12-30/2021-01-03"],
    (2021, 4, 6): ["2021-04-01/2021-04-11", "2021-04-01/11"],
    (2021, 4, 7): ["2021-4-7", "2021/04/07", "20210407"],
    (2021, 4, 27): [
        *("2021-04-27T16:10:03+02:00", "2021-04-27 16:10", "2021:04:27 16:10:03", "2021-04-27T08:00:00/2021-04-27T09:00:00"),
        *("2021-04-27T10:00/12:00", "2021-04-27T10:00:00/T12:00:00", "2021-04-26T10:00/28T12:00"),
    ],
}


@pytest.mark.parametrize("date", DATES)
def test_formats_of_dates(date):
    expected, start = datetime.date(*date), datetime.date(date[0], 1, 1)
    for text in DATES[date]:
        assert day_of_year(text) == pytest.approx((expected - start) / (datetime.date(date[0] + 1, 1, 1) - start)), text


@pytest.mark.parametrize(
    "text",
    ["", "x", "0000-00-00", "2021-13-01", "2021-04-05/2021-04-01", "2021-04-01/x", "9999-99", "12:30", "/", "Thu Foo 31 00:00:00 CET 2020"],
)
def test_a_text_that_is_not_a_date_gives_a_reason(text):
    assert isinstance(day_of_year(text), str)


HOURS = {"16:30": 16.5, "06:15:36": 6.26, "2021-04-27T16:30:00": 16.5, "2021-04-27 16:30+02:00": 16.5, "T16:30": 16.5, "23:59:60": 24}


@pytest.mark.parametrize("text", HOURS)
def test_formats_of_times(text):
    assert hour_of_day(text) == pytest.approx(HOURS[text], abs=1e-3) and hour_of_day(text) < 24


@pytest.mark.parametrize("text", ["2021-04-27", "24:00", "12", ""])
def test_a_text_that_is_not_a_time_gives_a_reason(text):
    assert isinstance(hour_of_day(text), str)


def test_names_are_cleaned():
    assert all(clean_name(cell) == "" for cell in ("Unknown", "NA", "\\N", "unidentified", "Quercus sp.", "Quercus spp"))
    names = {"  Rosa   canina ": "Rosa canina", "Wasp": "Wasp", "Nasua": "Nasua", "E\u0301chinops": "\u00c9chinops"}
    assert [clean_name(cell) for cell in names] == list(names.values())


@pytest.mark.parametrize("form", [list, TextLines.of])
def test_equal_values_have_one_number(form):
    """Two values are equal if their cells differ in spaces. The doctor compares observations by these numbers."""
    column = Column(np.array([0, 1, 2, 3, 1], np.int32), form(["o1", "o2", "NA", "o1"]))
    assert value_numbers(column).tolist() == [0, 1, -1, 0, 1]
