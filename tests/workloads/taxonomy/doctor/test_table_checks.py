"""Each check of the table finds the defects that are planted in records of biota, in these rows alone, and nothing in the clean records."""

import datetime
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from linnaeus.workloads.taxonomy.doctor import at_sea as sea
from linnaeus.workloads.taxonomy.doctor import repeated_rows, taxon_names, times
from linnaeus.workloads.taxonomy.manifest.labels.spellings import plain_taxa
from tests.workloads.taxonomy.doctor.conftest import rows_of, table_findings


def test_nothing_is_found_in_clean_records(rows, inspected):
    for number, row in enumerate(rows):
        row |= {"observation": f"o{number}", "photo_id": str(number)}
    assert table_findings(inspected(rows)) == []


CELLS = {  # check -> cells of a row that has the defect
    "coordinates 0, 0": {"latitude": "0", "longitude": "0.000"},
    "latitude and longitude swapped": {"latitude": "151.2", "longitude": "-33.9"},
    "impossible coordinates": {"latitude": "12", "longitude": "1200"},
    "latitude equals longitude": {"latitude": "12.5", "longitude": "-12.5"},
    "latitude or longitude 0": {"latitude": "0", "longitude": "12.34"},
    "whole degrees": {"latitude": "4", "longitude": "6"},
    "latitude or longitude missing": {"latitude": "4.1", "longitude": ""},
    "placeholder uncertainty": {"latitude": "4.1", "longitude": "6.2", "uncertainty": "3036"},
    "uncertainty 0": {"latitude": "4.1", "longitude": "6.2", "uncertainty": "0"},
    "negative uncertainty": {"latitude": "4.1", "longitude": "6.2", "uncertainty": "-1"},
    "uncertainty beyond half the Earth": {"latitude": "4.1", "longitude": "6.2", "uncertainty": "1e9"},
    "impossible elevation": {"elevation": "88480"},
    "date: impossible date": {"date": "2023-02-30"},
    "date: not a date": {"date": "spring"},
    "date: no month": {"date": "2023"},
    "time: impossible time": {"time": "25:10"},
    "date in the future": {"date": "2999-05-05"},
    "date before photography": {"date": "1758-06-01"},
    "default date of a clock": {"date": "1970-01-01"},
    "image file missing": {"path": "gone/photo.jpg"},
    "no label": {"order": "", "family": "", "genus": "", "species": "unknown"},
}


@pytest.mark.parametrize("check", CELLS)
def test_a_defect_of_a_cell_is_found_in_its_row_alone(check, rows, inspected):
    changed = [7, 311, 1700]
    for number, row in enumerate(changed):
        rows[row] |= CELLS[check]
        rows[row]["path"] += str(number) if "path" in CELLS[check] else ""
    findings = table_findings(inspected(rows))
    assert rows_of(findings, check) == changed
    assert {finding.check for finding in findings} == {check}
    assert all(finding.severity == "note" or finding.empty or finding.leave_out for finding in findings)


def test_kept_coordinates_of_zero_are_not_a_defect(rows, inspected):
    rows[7] |= CELLS["coordinates 0, 0"]
    assert table_findings(inspected(rows, "data.keep_zero_coordinates=true")) == []


def test_a_column_that_cannot_be_used_and_a_word_of_the_split_are_findings_beside_others(rows, inspected):
    for row in rows:
        row["date"] = row["date"] and "/".join(reversed(row["date"].split("-")))
    rows[3]["split"], rows[7]["latitude"] = "maybe", "1200"
    words, column, *others = table_findings(inspected(rows))
    assert words.check == column.check == "training would not start" and words.severity == column.severity == "error"
    assert "data.split_column: 'split' contains 'maybe'" in words.text and "data.date_format='%d/%m/%Y'" in column.text
    assert [(finding.check, finding.rows.tolist()) for finding in others] == [("impossible coordinates", [7])]
    assert not column.empty  # the corrected manifest keeps the cells


def test_a_cycle_of_parents_is_a_finding_beside_others(rows, inspected, tmp_path):
    species = sorted({row["species"] for row in rows if row["species"]})
    lines = ["id,parent_id,rank,name", "g1,f1,genus,G", "f1,g1,family,F", *(f"{name},g1,species,{name}" for name in species)]
    (tmp_path / "taxa.csv").write_text("\n".join(lines) + "\n")
    rows[7]["latitude"] = "1200"
    records = inspected(rows, f"data.taxonomy={tmp_path / 'taxa.csv'}", "data.taxon_column=species")
    findings = table_findings(records)
    assert findings[0].check == "training would not start" and "data.taxonomy: 'taxa.csv' has 1 cycle of parents" in findings[0].text
    assert rows_of(findings, "impossible coordinates") == [7] and (records.labels[:, -1] >= 0).any()


def test_photographs_and_ids_that_occur_twice(rows, inspected):
    for number, row in enumerate(rows):
        row["photo_id"] = str(number)
    other = next(number for number, row in enumerate(rows) if row["family"] != rows[5]["family"] and number > 20)
    taxon = {name: rows[3][name] for name in ("order", "family", "genus", "species")}
    rows[10] |= taxon | {"path": rows[3]["path"]}
    rows[other]["path"] = rows[5]["path"]
    rows[30]["photo_id"] = rows[4]["photo_id"]
    findings = table_findings(inspected(rows))
    assert rows_of(findings, "photograph twice") == [10]
    assert rows_of(findings, "photograph with two taxa") == [other]
    assert rows_of(findings, "photo_id twice") == [30]
    assert len(findings) == 3 and findings[0].details == ("first in row 4",)


def test_a_photograph_with_two_labels_of_one_lineage_is_not_one_with_two_taxa(rows, inspected):
    """The row with fewer ranks may be the first, so the doctor does not drop the later row."""
    rows[10] |= rows[3] | {"species": ""}
    findings = table_findings(inspected(rows))
    assert [finding.check for finding in findings] == ["photograph twice, to different ranks"]
    assert rows_of(findings, "photograph twice, to different ranks") == [10] and not findings[0].leave_out


@pytest.mark.parametrize(
    "column, check", [("observation_id", "same observation"), ("recordedBy", "same observer"), ("deploymentID", "same site")]
)
def test_a_group_in_two_splits_is_found_and_the_key_named(column, check, rows, inspected):
    for number, row in enumerate(rows):
        row[column] = f"g{number}"
    for validation, train in ((1650, 2), (1700, 3), (1999, 3)):
        rows[validation][column] = rows[train][column]
    rows[4][column] = rows[5][column]  # both in training
    rows[1750]["split"] = rows[1751]["split"] = rows[1752]["split"] = "test"
    rows[1750][column] = rows[1749][column]  # validation
    rows[1752][column] = rows[1751][column]  # both in test
    findings = table_findings(inspected(rows))
    assert rows_of(findings, f"{check} in two splits") == [1650, 1700, 1750, 1999] and len(findings) == 1
    assert f"data.group_column={column}" in findings[0].text


def test_groups_that_a_random_split_divides_are_a_note_until_they_are_used(rows, inspected):
    for number, row in enumerate(rows):
        row["site"] = f"s{number // 4}"
    (finding,) = table_findings(inspected(rows, "data.split_column=null"))
    assert finding.severity == "note" and "data.group_column=site" in finding.text and "500 values" in finding.text
    assert table_findings(inspected(rows, "data.split_column=null", "data.group_column=site")) == []


def test_rows_that_training_leaves_out_are_in_no_leak_and_repeat_no_photograph(rows, inspected, tmp_path):
    place = {"latitude": "47.12345", "longitude": "8.5", "date": "2023-06-01", "time": "10:00:00"}
    for number, row in enumerate(rows):
        row["observation_id"] = f"o{number}"
    for row in (rows[2], rows[1650]):
        row |= place | {"observation_id": "same"}
    rows[4]["path"] = rows[3]["path"] = rows[1700]["path"]
    taxon = ("order", "family", "genus", "species")
    rows[4] |= {name: rows[3][name] for name in taxon}
    checks = {"same observation in two splits": [1650], "burst in two splits": [1650], "photograph twice": [4]}
    findings = table_findings(inspected(rows))
    assert {check: rows_of(findings, check) for check in checks} == checks
    for row in (rows[2], rows[3]):
        row |= dict.fromkeys(taxon, "")
    findings = table_findings(inspected(rows))
    assert {finding.check for finding in findings} == {"no label", "photograph with two taxa"}
    assert rows_of(findings, "photograph with two taxa") == [1700]


BURST = {3: "10:00:00", 4: "10:00:50", 1800: "10:01:45", 1801: "10:03:00", 1802: "09:00:00", 1803: "09:00:30"}  # 1803 is a test row


@pytest.mark.parametrize("times", ["column", "dates", "format"])
def test_a_burst_in_two_splits(times, rows, inspected):
    place = {"latitude": "47.12345", "longitude": "8.5", "date": "2023-06-01"}
    for row, time in BURST.items():
        rows[row] |= place | {"time": time}
    rows[1803]["split"] = "test"
    keys = []
    if times != "column":
        for row in rows:
            time = row.pop("time")
            row["date"] = row["date"] and f"{row['date']} {time or '00:00:00'}"
        for row in (5, 1804):
            rows[row] |= place | {"date": "2023-06-01 00:00:00"}  # without a time
        keys = ["data.date_format='%Y-%m-%d %H:%M:%S'"] if times == "format" else []
    assert rows_of(table_findings(inspected(rows, *keys)), "burst in two splits") == [1800, 1803]


def test_bursts_that_cannot_be_checked_are_a_note(rows, inspected):
    for row in rows:
        del row["time"]
    (finding,) = table_findings(inspected(rows))
    assert finding.check == "bursts not checked" and finding.severity == "note"
    for row in rows:
        row["date"] = ""
    assert table_findings(inspected(rows)) == []


def test_a_point_with_records_of_many_days(rows, inspected):
    pile = list(range(100, 140))
    for row in pile:
        rows[row] |= {"latitude": "4.16569", "longitude": "6.45153"}
    (finding,) = table_findings(inspected(rows))
    assert finding.check == "point of many records" and finding.rows.tolist() == pile
    for number, row in enumerate(rows):
        row["site"] = f"s{number}"
    assert table_findings(inspected(rows)) == []  # data with sites have many records at a point


def test_many_rows_on_new_year(rows, inspected):
    first = list(range(200, 290))
    for row in first:
        rows[row]["date"] = f"{2000 + row % 20}-01-01"
    (finding,) = table_findings(inspected(rows))
    new_year = [number for number, row in enumerate(rows) if row["date"].endswith("-01-01")]
    assert finding.check == "1 January" and finding.rows.tolist() == new_year


def test_an_elevation_of_0_that_is_too_frequent(rows, inspected):
    zero = list(range(300, 320))
    for row in zero[:9]:
        rows[row]["elevation"] = "0.0"
    assert table_findings(inspected(rows)) == []  # a beach
    for row in zero:
        rows[row]["elevation"] = "0"
    (finding,) = table_findings(inspected(rows))
    assert finding.check == "elevation 0" and finding.severity == "warning" and finding.rows.tolist() == zero
    assert table_findings(inspected(rows, "data.elevation_missing=0")) == []
    for number, row in enumerate(rows[320:380]):
        row["elevation"] = f"{number % 10 + 1}"  # 3 rows of each metre of a coast
    assert table_findings(inspected(rows)) == []


def test_the_future_begins_the_day_after_tomorrow(rows, inspected):
    rows[5]["date"], rows[6]["date"] = "2024-03-01", "2024-03-02"
    findings = times.dates(inspected(rows), today=datetime.date(2024, 2, 29))
    assert rows_of(findings, "date in the future") == [6]


def test_later_rows_of_the_same_number():
    later, first = repeated_rows.later_rows(np.array([5, -1, 5, 3, -1, 3, 5]))
    assert later.tolist() == [2, 5, 6] and first.tolist() == [0, 3, 0]


PLACES = {  # coordinates of a record of the species -> check, description
    (-1, 1): ("sign of coordinates", "latitude with the other sign"),
    (1, -1): ("sign of coordinates", "longitude with the other sign"),
    (-1, -1): ("sign of coordinates", "both with the other sign"),
}


def species_in_the_north(rows):
    """Move the species with most records to 45 degrees north and 75 degrees east. Return its rows that have a place."""
    name = max({row["species"] for row in rows if row["species"]}, key=[row["species"] for row in rows].count)
    own = [number for number, row in enumerate(rows) if row["species"] == name and row["latitude"]]
    for row in own:
        rows[row] |= {
            "latitude": f"{float(rows[row]['latitude']) / 4 + 45:.5f}",
            "longitude": f"{float(rows[row]['longitude']) / 4 + 75:.5f}",
        }
    return own


def with_subspecies(rows):
    """Give each tenth row with a species a subspecies, its own."""
    for number, row in enumerate(rows):
        row["subspecies"] = f"{row['species']} s{number}" if row["species"] and number % 10 == 0 else ""


@pytest.mark.parametrize("subspecies", [False, True])
def test_signs_and_order_of_coordinates_by_the_other_records_of_the_species(subspecies, rows, inspected):
    own = species_in_the_north(rows)
    if subspecies:
        with_subspecies(rows)
    assert table_findings(inspected(rows)) == []
    for row, (latitude, longitude) in zip(own, PLACES, strict=False):
        rows[row]["latitude"] = f"{latitude * float(rows[row]['latitude']):.5f}"
        rows[row]["longitude"] = f"{longitude * float(rows[row]['longitude']):.5f}"
    rows[own[10]] |= {"latitude": rows[own[10]]["longitude"], "longitude": rows[own[10]]["latitude"]}
    rows[own[20]] |= {"latitude": "-46.11111", "longitude": "-75.22222"}
    rows[own[30]] |= {"latitude": "12.11111", "longitude": "-100.22222"}
    findings = table_findings(inspected(rows))
    assert rows_of(findings, "coordinates exchanged") == [own[10]]
    assert rows_of(findings, "far from its species") == [own[30]]
    signs = [finding for finding in findings if finding.check == "sign of coordinates"]
    both = sorted([own[2], own[20]])
    assert [(f.rows.tolist(), words in f.text) for f, (_, words) in zip(signs, PLACES.values(), strict=True)] == [
        ([own[0]], True),
        ([own[1]], True),
        (both, True),
    ]
    assert all(finding.empty == ("latitude", "longitude", "uncertainty") for finding in signs)


def test_a_genus_under_two_families(rows, inspected):
    row = next(number for number, row in enumerate(rows) if row["genus"] and row["species"])
    other = next(r["family"] for r in rows if r["order"] == rows[row]["order"] and r["family"] not in ("", rows[row]["family"]))
    rows[row]["family"] = other
    (finding,) = table_findings(inspected(rows))
    assert finding.check == "lineage conflict" and finding.rows.tolist() == [row] and other in finding.details[0]


def test_a_homonym_in_another_order_is_a_note(rows, inspected):
    name = rows[0]["genus"] or rows[1]["genus"]
    rows.append(rows[5] | {"path": "images/new.jpg", "order": "Novales", "family": "Novaceae", "genus": name, "species": ""})
    (finding,) = table_findings(inspected(rows))
    assert finding.check == "homonym" and finding.severity == "note" and finding.rows.tolist() == [len(rows) - 1]


@pytest.mark.parametrize("change", [str.upper, lambda name: f"{name} (Mill.) Hort., 1768", lambda name: name.replace(" ", "-")])
def test_a_species_in_two_spellings(change, rows, inspected):
    row = next(number for number, row in enumerate(rows) if [r["species"] for r in rows].count(row["species"]) > 5 and row["species"])
    usual = rows[row]["species"]
    rows[row]["species"] = change(usual)
    findings = table_findings(inspected(rows))
    assert rows_of(findings, "spelling of a taxon") == [row] and {finding.check for finding in findings} == {"spelling of a taxon"}
    assert repr(usual) in findings[0].details[0]


def test_names_with_a_common_start_are_not_spellings_of_one_name():
    names = ["Great blue Heron", "Great blue Jay", "Black-capped Vireo", "Black-capped Chickadee", "Quercus Alba", "Quercus Robur"]
    assert len(set(plain_taxa(names, 2))) == len(names)
    assert plain_taxa(["Quercus robur Linnaeus", "Quercus robur", "Morus L."], 1) == ["quercus robur", "quercus robur", "morus"]


def test_a_species_that_begins_with_another_genus(rows, inspected):
    row = next(number for number, row in enumerate(rows) if row["genus"] and row["species"])
    rows[row]["species"] = "Aliena " + rows[row]["species"].split(" ")[1]
    (finding,) = table_findings(inspected(rows))
    assert finding.check == "species of another genus" and finding.rows.tolist() == [row]
    for other in rows:  # if no species begins with its genus, the names are not binomials
        other["species"] = other["species"] and "Aliena " + other["species"].split(" ")[1]
    assert taxon_names.foreign_genus(inspected(rows)) == []


@pytest.mark.parametrize("subspecies", [False, True])
def test_a_land_organism_at_sea_is_found_with_a_map(subspecies, rows, inspected, monkeypatch):
    own = species_in_the_north(rows)
    if subspecies:
        with_subspecies(rows)
    globe = SimpleNamespace(is_land=lambda latitude, longitude: np.asarray(longitude) < 80)  # the coast is the meridian of 80 degrees
    for row in own:
        rows[row] |= {"latitude": "60", "longitude": "79.5", "uncertainty": "20"}
    places = {own[1]: ("81.123", "20"), own[2]: ("80.1", "20"), own[3]: ("80.25", ""), own[4]: ("81.123", "100000")}
    for row, (longitude, metres) in places.items():
        rows[row] |= {"longitude": longitude, "uncertainty": metres}
    records = inspected(rows)
    monkeypatch.setattr(sea, "can_check_sea", lambda: False)
    assert sea.at_sea(records) == []
    monkeypatch.setattr(sea, "can_check_sea", lambda: True)
    monkeypatch.setitem(sys.modules, "global_land_mask", SimpleNamespace(globe=globe))
    (finding,) = sea.at_sea(records)
    assert finding.rows.tolist() == sorted([own[1], own[3]])  # 5 km and 100 km of uncertainty reach the coast
