"""Records near capitals, centroids and institutions: those that are planted are found, and no others."""

import csv
import re

import numpy as np
import pytest

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.doctor import doctor_cli
from linnaeus.workloads.taxonomy.doctor.findings import Places
from linnaeus.workloads.taxonomy.doctor.known_places import capitals, near_known_places, nearest, read_places
from linnaeus.workloads.taxonomy.doctor.species_ranges import EARTH_KM, unit_vectors
from tests.workloads.taxonomy.doctor.conftest import rows_of, table_findings

LIST = "name,latitude,longitude,kind\nFrance,46.5512,2.5511,country\nBavaria,48.9601,11.3998,province\nMuseum,51.4963,-0.1764,institution\n"


def at(row, latitude, longitude):
    row |= {"latitude": str(latitude), "longitude": str(longitude), "uncertainty": ""}


def test_the_table_of_capitals():
    """Hemispheres by hand, and no city twice."""
    found = capitals()
    place = dict(zip(found.name, zip(found.latitude.tolist(), found.longitude.tolist(), strict=True), strict=True))
    assert len(place) == len(found.name) == 197 and set(found.kind) == {"capital"}
    assert place["Quito"] == (-0.18, -78.47) and place["Nairobi"] == (-1.29, 36.82) and place["Suva"] == (-18.14, 178.44)
    assert len({where for where in place.values()}) == len(place)


def test_clean_records_have_none(rows, inspected):
    assert near_known_places(inspected(rows)) == []


def test_planted_capitals_are_a_note_with_counts(rows, inspected):
    for row in (7, 311, 1700):
        at(rows[row], 52.52 + 0.01, 13.40)
    at(rows[20], -1.286, 36.817)  # Nairobi, written with more digits
    at(rows[30], 52.52 + 0.03, 13.40)  # 3.3 km from the centre of Berlin
    records = inspected(rows)
    findings = near_known_places(records)
    assert [(f.check, f.severity, sorted(f.rows.tolist())) for f in findings] == [("near capital", "note", [7, 20, 311, 1700])]
    assert "Berlin (3) and Nairobi (1)" in findings[0].text or "Berlin (3), Nairobi (1)" in findings[0].text
    assert findings[0].details[0] == "1.11 km from Berlin" and findings[0].empty == ()
    assert {f.check for f in table_findings(records)} == {"near capital"} | {f.check for f in table_findings(records) if "far" in f.check}


def test_places_of_the_user_are_warnings(rows, inspected, tmp_path):
    (tmp_path / "places.csv").write_text(LIST)
    at(rows[5], 46.5512, 2.5511)
    at(rows[6], 46.5512 + 0.008, 2.5511)  # 0.9 km
    at(rows[7], 46.5512 + 0.011, 2.5511)  # 1.2 km
    at(rows[8], 48.9601, 11.3998)
    at(rows[9], 51.4963 + 0.0008, -0.1764)  # 90 m
    at(rows[10], 51.4963 + 0.0011, -0.1764)  # 120 m; 3.6 km from the centre of London
    inspected(rows)
    out = tmp_path / "out"
    words = ["manifest", f"data.path={tmp_path / 'manifest.csv'}", "--no-images", f"--out={out}", f"--places={tmp_path / 'places.csv'}"]
    assert doctor_cli.main(words) == 0
    with (out / "findings.csv").open(newline="") as file:
        found = [(row["check"], int(row["row"]) - 1, row["severity"]) for row in csv.DictReader(file) if row["check"].startswith("near ")]
    expected = [("near country", 5), ("near country", 6), ("near province", 8), ("near institution", 9)]
    assert sorted(found) == sorted((check, row, "warning") for check, row in expected)
    assert not rows_of(near_known_places(inspected(rows)), "near country")  # not without the list


def test_the_catalogue_of_centroids_of_gbif_is_read_as_it_is(tmp_path):
    header = "iso3 iso2 gadm1 gbif_name type area_sqkm decimal_longitude decimal_latitude source_locality_name source_reference source"
    lines = [
        "FRA\tFR\t\tFrance\tPCLI\t548000.1\t2.5511\t46.5512\tFrance\thttps://a.org/c.html\tGeoNames",
        "DEU\tDE\tDEU.2_1\t\tADM1\t\t11.3998\t48.9601\tBavaria\thttps://a.org/c.html\tGeoNames",
    ]
    (tmp_path / "centroids.tsv").write_text("\n".join([header.replace(" ", "\t"), *lines]) + "\n")
    found = read_places(tmp_path / "centroids.tsv")
    assert (found.name[:2], found.kind[:3]) == (["France", "Bavaria"], ["country", "province", "capital"])
    assert (found.latitude[:2].tolist(), found.longitude[:2].tolist()) == ([46.5512, 48.9601], [2.5511, 11.3998])


def test_a_list_may_have_decimal_commas_between_semicolons(tmp_path):
    (tmp_path / "places.csv").write_text("name;latitude;longitude;kind\nFrance;46,5512;2,5511;country\n")
    found = read_places(tmp_path / "places.csv")
    assert (found.latitude[0], found.longitude[0], found.kind[0]) == (46.5512, 2.5511, "country")


@pytest.mark.parametrize(
    "text, message",
    [
        ("name,latitude,longitude\na,1,2\n", "has no column kind; its columns must be name, latitude, longitude, kind"),
        ("name,latitude,longitude,kind\na,1,2,town\n", "has the kind 'town'; it must be one of capital, country"),
        ("name,latitude,longitude,kind\na,1,2,other\nb,north,2,other\n", "row 2: latitude must be from -90 to 90"),
        ("name,latitude,longitude,kind\na,1,2,other\nb, c,1,2,other\n", "has rows that cannot be used: a different number of cells"),
        ("name,latitude,longitude,kind\na,1,200,other\n", "row 1: longitude must be from -180 to 180"),
    ],
)
def test_lists_that_are_refused(text, message, tmp_path):
    (tmp_path / "places.csv").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_places(tmp_path / "places.csv")
    with pytest.raises(ConfigError, match="does not exist"):
        read_places(tmp_path / "absent.csv")


def test_the_nearest_place_is_that_of_all_pairs():
    """3,000 points and 60 places of a small region that crosses 180 degrees, against the exact distances of all pairs."""
    random = np.random.default_rng(5)
    region = lambda count: (random.uniform(-1, 1, count), (random.uniform(179, 181, count) + 180) % 360 - 180)
    (latitude, longitude), (north, east) = region(3000), region(60)
    place, km = nearest(latitude, longitude, Places([""] * 60, north, east, ["other"] * 60), "other", 5.0)
    exact = EARTH_KM * np.arccos(np.clip(unit_vectors(latitude, longitude) @ unit_vectors(north, east).T, -1, 1))
    clear = np.abs(exact.min(axis=1) - 5.0) > 0.05
    np.testing.assert_array_equal((place >= 0)[clear], (exact.min(axis=1) < 5.0)[clear])
    near = place >= 0
    np.testing.assert_array_equal(place[near], exact.argmin(axis=1)[near])
    np.testing.assert_allclose(km[near], exact.min(axis=1)[near], atol=0.02)
    assert 100 < near.sum() < 2900
