"""Numbers of rows and taxa that filters would leave out, against counts of the rows in plain Python."""

from collections import Counter

from linnaeus.workloads.taxonomy.doctor import doctor_cli
from linnaeus.workloads.taxonomy.doctor.possible_filters import filter_counts


def plain(rows):
    """Return filter -> (rows left out, species lost)."""
    used = [row for row in rows if any(row[rank] for rank in ("order", "family", "genus", "species"))]
    species = Counter(row["species"] for row in used if row["species"])
    number = lambda text: float(text) if text else 0.0
    conditions = {
        "without coordinates": lambda row: not row["latitude"] or row["latitude"] == row["longitude"] == "0",
        **{f"uncertainty above {km} km": lambda row, km=km: number(row["uncertainty"]) > 1000 * km for km in (1, 10, 100)},
        "without an uncertainty": lambda row: not row["uncertainty"],
        "without a date (day known)": lambda row: not row["date"] or len(row["date"]) < 10,
        "without an elevation": lambda row: not row["elevation"],
        "without a species": lambda row: not row["species"],
        **{
            f"species with fewer than {n} photographs": lambda row, n=n: bool(row["species"]) and species[row["species"]] < n
            for n in (2, 5, 10)
        },
    }
    found = {}
    for name, leaves in conditions.items():
        kept = {row["species"] for row in used if not leaves(row)}
        found[name] = (sum(map(leaves, used)), len(set(species) - kept))
    return found


def test_the_counts_are_those_of_the_rows(rows, inspected):
    for number, row in enumerate(rows[:60]):
        row |= ({"uncertainty": "2500"}, {"uncertainty": "150000"}, {"date": "2020-05"}, {"latitude": "0", "longitude": "0"})[number % 4]
    own = Counter(row["species"] for row in rows if row["species"])
    lone = min(own, key=own.get)
    for row in [row for row in rows if row["species"] == lone][1:]:
        row |= {"species": "", "genus": "", "family": "", "order": ""}  # left out by training
    records = inspected(rows)
    found = {count.name: (count.rows, count.taxa) for count in filter_counts(records)}
    assert found == plain(rows)
    assert found["uncertainty above 100 km"][0] >= 15 and found["species with fewer than 2 photographs"] == (1, 1)


def test_cells_that_training_sets_to_missing_count_as_missing(rows, inspected):
    for row, date, elevation in zip(rows, ("2019-01-01/2019-12-31", "2019-02-30", "2019-05"), ("0", "99999", "0"), strict=False):
        row |= {"date": date, "elevation": elevation}
    for more, zeros in (((), 0), (("data.elevation_missing=0",), 2)):
        found = {count.name: count.rows for count in filter_counts(inspected(rows, *more))}
        assert found["without a date (day known)"] == sum(not row["date"] for row in rows) + 3
        assert found["without an elevation"] == sum(not row["elevation"] for row in rows) + 1 + zeros


def test_a_source_without_places_and_dates_has_the_filters_of_its_taxa(rows, inspected):
    rows = [{name: row[name] for name in ("path", "genus", "species")} for row in rows]
    assert [count.name.split(" ")[0] for count in filter_counts(inspected(rows))] == ["without", *["species"] * 3]


def test_the_filters_are_printed_and_on_the_page(rows, inspected, tmp_path, capsys):
    for row in rows[:7]:
        row["uncertainty"] = "250000"
    inspected(rows)
    assert doctor_cli.main(["manifest", f"data.path={tmp_path / 'manifest.csv'}", "--no-images", f"--out={tmp_path / 'out'}"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("uncertainty above 100 km"))
    assert line.split()[4] == "7" and line.split()[-1] == "0"
    page = (tmp_path / "out/doctor.html").read_text()
    assert "Filters that are not set" in page and "<td>uncertainty above 100 km</td><td>7</td>" in page
