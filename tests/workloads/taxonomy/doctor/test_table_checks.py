"""Each check of the table finds the defects that are planted in records of biota, in these rows alone, and nothing in the clean records."""

import datetime

import numpy as np
import pytest

from linnaeus.workloads.taxonomy.doctor import leaks, places, repeated_rows, times
from linnaeus.workloads.taxonomy.doctor.dropped_rows import dropped_rows, emptied_cells
from tests.workloads.taxonomy.doctor.conftest import rows_of

TABLE_CHECKS = (
    *(dropped_rows, emptied_cells, repeated_rows.repeated_photographs, repeated_rows.repeated_ids, leaks.group_leaks, leaks.bursts),
    *(places.coordinates, places.uncertainties, places.shared_points, times.dates),
)


def findings_of(records):
    return [finding for check in TABLE_CHECKS for finding in check(records)]


def test_nothing_is_found_in_clean_records(rows, inspected):
    for number, row in enumerate(rows):
        row |= {"observation": f"o{number}", "photo_id": str(number)}
    assert findings_of(inspected(rows)) == []


CELLS = {  # check -> cells of a row that has the defect
    "coordinates 0, 0": {"latitude": "0", "longitude": "0.000"},
    "latitude and longitude swapped": {"latitude": "151.2", "longitude": "-33.9"},
    "impossible coordinates": {"latitude": "12", "longitude": "1200"},
    "latitude equals longitude": {"latitude": "12.5", "longitude": "-12.5"},
    "latitude or longitude 0": {"latitude": "0", "longitude": "12.34"},
    "whole degrees": {"latitude": "48", "longitude": "11"},
    "half a place": {"latitude": "48.1", "longitude": ""},
    "placeholder uncertainty": {"latitude": "48.1", "longitude": "11.2", "uncertainty": "3036"},
    "uncertainty 0": {"latitude": "48.1", "longitude": "11.2", "uncertainty": "0"},
    "negative uncertainty": {"latitude": "48.1", "longitude": "11.2", "uncertainty": "-1"},
    "uncertainty beyond half the Earth": {"latitude": "48.1", "longitude": "11.2", "uncertainty": "1e9"},
    "impossible elevation": {"elevation": "88480"},
    "date: impossible date": {"date": "2023-02-30"},
    "date: not a date": {"date": "spring"},
    "date: no month": {"date": "2023"},
    "time: impossible time": {"time": "25:10"},
    "date in the future": {"date": "2999-05-05"},
    "date before photography": {"date": "1758-06-01"},
    "first day of a clock": {"date": "1970-01-01"},
    "image file missing": {"path": "gone/photo.jpg"},
    "no label": {"order": "", "family": "", "genus": "", "species": "unknown"},
}


@pytest.mark.parametrize("check", CELLS)
def test_a_defect_of_a_cell_is_found_in_its_row_alone(check, rows, inspected):
    changed = [7, 311, 1700]
    for number, row in enumerate(changed):
        rows[row] |= CELLS[check]
        rows[row]["path"] += str(number) if "path" in CELLS[check] else ""
    findings = findings_of(inspected(rows))
    assert rows_of(findings, check) == changed
    assert {finding.check for finding in findings} == {check}
    assert all(finding.severity == "note" or finding.empty or finding.leave_out for finding in findings)


def test_photographs_and_ids_that_occur_twice(rows, inspected):
    for number, row in enumerate(rows):
        row["photo_id"] = str(number)
    other = next(number for number, row in enumerate(rows) if row["family"] != rows[5]["family"] and number > 20)
    taxon = {name: rows[3][name] for name in ("order", "family", "genus", "species")}
    rows[10] |= taxon | {"path": rows[3]["path"]}
    rows[other]["path"] = rows[5]["path"]
    rows[30]["photo_id"] = rows[4]["photo_id"]
    findings = findings_of(inspected(rows))
    assert rows_of(findings, "photograph twice") == [10]
    assert rows_of(findings, "photograph with two taxa") == [other]
    assert rows_of(findings, "photo_id twice") == [30]
    assert len(findings) == 3 and findings[0].details == ("first in row 4",)


@pytest.mark.parametrize(
    "column, check", [("observation_id", "same observation"), ("recordedBy", "same observer"), ("deploymentID", "same site")]
)
def test_a_group_in_two_splits_is_found_and_the_key_named(column, check, rows, inspected):
    for number, row in enumerate(rows):
        row[column] = f"g{number}"
    for validation, train in ((1650, 2), (1700, 3), (1999, 3)):
        rows[validation][column] = rows[train][column]
    rows[4][column] = rows[5][column]  # both in training
    findings = findings_of(inspected(rows))
    assert rows_of(findings, f"{check} in two splits") == [1650, 1700, 1999] and len(findings) == 1
    assert f"data.group_column={column}" in findings[0].text and "2 values" in findings[0].text


def test_groups_that_a_random_split_divides_are_a_note_until_they_are_used(rows, inspected):
    for number, row in enumerate(rows):
        row["site"] = f"s{number // 4}"
    (finding,) = findings_of(inspected(rows, "data.split_column=null"))
    assert finding.severity == "note" and "data.group_column=site" in finding.text and "500 values" in finding.text
    assert findings_of(inspected(rows, "data.split_column=null", "data.group_column=site")) == []


def test_a_burst_in_two_splits(rows, inspected):
    place = {"latitude": "47.12345", "longitude": "8.5", "date": "2023-06-01"}
    for row, time in ((3, "10:00:00"), (4, "10:00:50"), (1800, "10:01:45"), (1801, "10:03:00"), (1802, "09:00:00")):
        rows[row] |= place | {"time": time}
    assert rows_of(findings_of(inspected(rows)), "burst in two splits") == [1800]


def test_a_point_with_records_of_many_days(rows, inspected):
    pile = list(range(100, 140))
    for row in pile:
        rows[row] |= {"latitude": "51.16569", "longitude": "10.45153"}
    (finding,) = findings_of(inspected(rows))
    assert finding.check == "point of many records" and finding.rows.tolist() == pile
    for number, row in enumerate(rows):
        row["site"] = f"s{number}"
    assert findings_of(inspected(rows)) == []  # data with sites have many records at a point


def test_many_rows_on_new_year(rows, inspected):
    first = list(range(200, 290))
    for row in first:
        rows[row]["date"] = f"{2000 + row % 20}-01-01"
    (finding,) = findings_of(inspected(rows))
    new_year = [number for number, row in enumerate(rows) if row["date"].endswith("-01-01")]
    assert finding.check == "1 January" and finding.rows.tolist() == new_year


def test_the_future_begins_the_day_after_tomorrow(rows, inspected):
    rows[5]["date"], rows[6]["date"] = "2024-03-01", "2024-03-02"
    findings = times.dates(inspected(rows), today=datetime.date(2024, 2, 29))
    assert rows_of(findings, "date in the future") == [6]


def test_later_rows_of_the_same_number():
    later, first = repeated_rows.later_rows(np.array([5, -1, 5, 3, -1, 3, 5]))
    assert later.tolist() == [2, 5, 6] and first.tolist() == [0, 3, 0]
