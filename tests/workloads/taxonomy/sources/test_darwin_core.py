"""`data=darwin_core`: every form of an archive, its joins, what GBIF flags, the account of what is left out, and what is refused."""

import concurrent.futures
import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.manifest.clean_records import read_clean
from linnaeus.workloads.taxonomy.manifest.tables.table import LONGEST_LINE
from linnaeus.workloads.taxonomy.sources.darwin_core_archive.archive_members import Archive
from tests import runs
from tests.workloads.taxonomy.sources.conftest import METADATA, same_as_manifest, source_of, trains
from tests.workloads.taxonomy.sources.darwin_core_writer import archive, table, write

LABELS = ("order", "family", "genus", "species")
TERMS = dict(
    zip(
        METADATA,
        ("decimalLatitude", "decimalLongitude", "coordinateUncertaintyInMeters", "eventDate", "eventTime", "minimumElevationInMeters"),
        strict=True,
    )
)
QUANTITIES = ("latitude", "longitude", "uncertainty", "day", "hour", "elevation")
OAK = {"family": "Fagaceae", "genus": "Quercus", "species": "Quercus robur"}
BEECH = {"family": "Fagaceae", "genus": "Fagus", "species": "Fagus sylvatica"}


def core_of(records, labels=LABELS):
    return [
        {"id": f"{i}", "locality": f"site {i % 8}", "split": row["split"]}
        | {rank: row[rank] for rank in labels}
        | {TERMS[name]: row[name] for name in METADATA}
        for i, row in enumerate(records.rows)
    ]


def media_of(records, host="https://photos.example.org/"):
    return [
        {"coreid": f"{i}", "type": "StillImage", "format": "image/jpeg", "identifier": host + quote(row["path"])}
        for i, row in enumerate(records.rows)
    ]


def occurrences(count=8, **columns):
    """Return occurrences of two species, and a column for each list or text of `columns`."""
    rows = [{"id": str(i), **(OAK if i % 2 else BEECH)} for i in range(count)]
    return [row | {name: cells if isinstance(cells, str) else cells[i] for name, cells in columns.items()} for i, row in enumerate(rows)]


def links(rows, **columns):
    return [{"coreid": row["id"], "identifier": f"http://a.org/{row['id']}.jpg"} | columns for row in rows]


def archive_at(folder, members, photographs=range(8)):
    for i in photographs:
        Image.new("RGB", (24, 24), (i * 20, 9, 9)).save(folder / f"{i}.jpg")
    return f"data.path={write(folder / 'archive', members)}", f"data.root={folder}"


def read(folder, members, *overrides, photographs=range(8)):
    """Return the clean records of an archive, with photographs ID.jpg beside it."""
    given = ["data=darwin_core", *archive_at(folder, members, photographs), "data.image_size=16", *overrides]
    return read_clean(runs.composed(given).data)[0]


def refusal(folder, members, *overrides, photographs=range(8)):
    with pytest.raises(ConfigError) as caught:
        read(folder, members, *overrides, photographs=photographs)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 420
    return str(caught.value)


def known(metadata):
    return {name: int((~np.isnan(getattr(metadata, name))).sum()) for name in QUANTITIES}


def test_an_archive_is_the_manifest_and_trains(records, tmp_path):
    path = write(tmp_path / "0012345.zip", archive(core_of(records), media_of(records)), inside="0012345/")
    given = ("data=darwin_core", f"data.path={path}", f"data.root={records.folder}")
    source = same_as_manifest(records, *given)
    assert source.excluded == {} and f"files of photographs found by the path of the URL: {len(records.rows)}" in " ".join(source.notes)
    grouped = source_of(*given, "data.group_column=locality", "data.split_column=null")
    assert all(len(set(grouped.split[grouped.group == site])) == 1 for site in range(8))
    assert trains(tmp_path, *given)["status"] == "finished"


@pytest.mark.parametrize(
    "suffix, inside, form",
    [
        ("", "", {"delimiter": ",", "quote": '"', "end": "\r\n"}),
        ("", "folder/", {"header": False, "encoding": "utf-16"}),
        (".tgz", "folder/", {"delimiter": ";", "quote": "'", "end": "\r"}),
        (".zip", "", {"delimiter": "||", "end": "%\n", "encoding": "windows-1252", "header": False}),
    ],
)
def test_every_form_of_an_archive_has_the_same_records(records, tmp_path, suffix, inside, form):
    path = write(tmp_path / f"archive{suffix}", archive(core_of(records), media_of(records), **form), inside)
    config = runs.composed(["data=darwin_core", f"data.path={path}", f"data.root={records.folder}", "data.image_size=16"]).data
    theirs = runs.composed(["data=manifest", f"data.path={records.folder}/manifest.csv", "data.image_size=16"]).data
    ours, manifest = read_clean(config)[0], read_clean(theirs)[0]
    assert ours.files.names.tolist() == manifest.files.names.tolist()
    np.testing.assert_array_equal(ours.labels, manifest.labels)
    for name in QUANTITIES:
        np.testing.assert_array_equal(getattr(ours.metadata, name), getattr(manifest.metadata, name))


def test_one_line_that_is_not_utf8_does_not_change_the_others(records, tmp_path):
    rows = core_of(records)
    for number, row in enumerate(rows):
        row["recordedBy"] = f"José {number}"
    folder = write(tmp_path / "archive", archive(rows, media_of(records)))
    table = next(path for path in folder.iterdir() if "José 3".encode() in path.read_bytes())
    table.write_bytes(table.read_bytes().replace("José 3".encode(), "José 3".encode("windows-1252"), 1))
    given = ["data=darwin_core", f"data.path={folder}", f"data.root={records.folder}", "data.image_size=16", "data.group_column=recordedBy"]
    found = read_clean(runs.composed(given).data)[0]
    people = found.columns["recordedBy"]
    assert set(people.values[code] for code in people.codes) == {f"José {number}" for number in range(len(rows))}
    assert f"{table.name}: 1 line not in UTF-8, read as windows-1252; the others are in UTF-8" in found.notes


def test_tables_of_a_download_without_a_descriptor(records, tmp_path):
    rows = [{"gbifID": row.pop("id"), **row} for row in core_of(records)]
    media = [{"gbifID": row.pop("coreid"), **row} for row in media_of(records)]
    folder = write(tmp_path / "download", {"occurrence.txt": table(rows), "multimedia.txt": table(media), "rights.txt": b"none"})
    for path in (folder, folder / "occurrence.txt"):
        same_as_manifest(records, "data=darwin_core", f"data.path={path}", f"data.root={records.folder}")


def test_events_have_the_photographs_of_their_occurrences(tmp_path):
    core = [{"id": f"e{i}", "eventDate": "2020-05-01", "decimalLatitude": "1", "decimalLongitude": f"{i}.5"} for i in range(5)]
    empty = {"eventDate": "", "occurrenceStatus": ""}
    found = [{"coreid": f"e{i}", "occurrenceID": str(i), **empty, **OAK} for i in range(4)]
    found += [found[3] | {"occurrenceID": "4", **BEECH}, found[2] | {"occurrenceID": "5"}]
    found += [found[1] | {"coreid": "gone", "occurrenceID": "6"}, found[1] | {"occurrenceID": "7", "occurrenceStatus": "absent", **BEECH}]
    media = [{"coreid": f"e{i}", "identifier": f"http://a.org/{i}.jpg", "occurrenceID": ""} for i in range(4)]
    media += [{"coreid": "e3", "identifier": "http://a.org/4.jpg", "occurrenceID": "4"}, media[0] | {"coreid": "nothing"}]
    rows = read(tmp_path, archive(core, media, kind="Event", events=found))
    assert rows.files.names.tolist() == ["0.jpg", "1.jpg", "2.jpg", "4.jpg"]  # 3.jpg: an event with an oak and a beech
    assert [rows.tree.names[2][code] for code in rows.labels[:, 2]] == ["Quercus robur"] * 3 + ["Fagus sylvatica"]
    assert rows.metadata.longitude.tolist() == [0.5, 1.5, 2.5, 3.5] and known(rows.metadata)["day"] == 4
    assert rows.excluded == {
        "photograph of an id or an event with several records": 1,
        "photograph of a record that is not in the archive": 1,
        "record without a photograph": 4,
    }


def test_an_occurrence_id_that_several_records_have_does_not_move_a_photograph_to_another_record(tmp_path):
    """Archives write N/A, or the id of a specimen, as the occurrenceID of many records."""
    core = occurrences(6, occurrenceID=["N/A", "N/A", "urn:1", "urn:1", "urn:2", "urn:3"])
    media = [row | {"occurrenceID": core[i]["occurrenceID"]} for i, row in enumerate(links(core))]
    rows = read(tmp_path, archive(core, media))
    assert rows.files.names.tolist() == [f"{i}.jpg" for i in range(6)] and rows.excluded == {}
    assert [rows.tree.names[2][code] for code in rows.labels[:, 2]] == [row["species"] for row in core]
    events = [{"id": "e0"}, {"id": "e1"}]
    found = [{"coreid": f"e{i // 2}", "occurrenceID": name, **(OAK if i % 2 else BEECH)} for i, name in enumerate(("a", "b", "a", "N/A"))]
    media = [
        {name: row[name] for name in ("coreid", "occurrenceID")} | {"identifier": f"http://a.org/{i}.jpg"} for i, row in enumerate(found)
    ]
    (tmp_path / "events").mkdir()
    rows = read(tmp_path / "events", archive(events, media, kind="Event", events=found))
    assert rows.files.names.tolist() == ["0.jpg", "1.jpg", "2.jpg"]  # 3.jpg: an oak and a beech, and no occurrenceID
    assert [rows.tree.names[2][code] for code in rows.labels[:, 2]] == [row["species"] for row in found[:3]]
    assert rows.excluded == {"photograph of an id or an event with several records": 1, "record without a photograph": 1}


def test_every_record_is_a_row_or_is_counted(tmp_path):
    core = occurrences(9, occurrenceStatus=["present"] * 7 + ["ABSENT", ""])
    core[5]["id"] = core[4]["id"]
    media = links(core[:5] + core[6:8]) + links([{"id": "99"}]) + links(core[:1], type="Sound") + links(core[1:2], format="video/mp4")
    media = [{"type": "", "format": "image/jpeg"} | row for row in media] + [{"type": "", "format": "", "coreid": "2", "identifier": ""}]
    media = [{name: row[name] for name in ("coreid", "type", "format", "identifier")} for row in media]
    members = archive(core, media)
    members["multimedia.txt"] += b"0\tStillImage\n"
    rows = read(tmp_path, members, photographs=[0, 1, 2, 7])
    assert rows.files.names.tolist() == ["0.jpg", "1.jpg", "2.jpg"]
    assert rows.excluded == {
        "a different number of cells than the header": 1,
        "record without a photograph": 3,
        "sound, film or another file that is not a photograph": 2,
        "photograph without a link": 1,
        "photograph of an id or an event with several records": 1,
        "photograph of a record that is not in the archive": 1,
        "photograph without a file (not downloaded)": 2,
        "record with occurrenceStatus absent": 1,
    }
    assert len(rows.files.names) + sum(rows.excluded.values()) == len(media) + 1 + 3


def test_links_in_the_records_and_files_named_by_ids(tmp_path):
    linked = occurrences(4, associatedMedia=["http://a.org/0.jpg | http://a.org/1.jpg", "", "http://a.org/2.jpg;http://a.org/3.jpg", ""])
    rows = read(tmp_path, archive(linked))
    assert rows.files.names.tolist() == ["0.jpg", "1.jpg", "2.jpg", "3.jpg"] and len(set(rows.labels[:, 1].tolist())) == 1
    assert rows.excluded == {"record without a photograph": 2}
    (tmp_path / "1_2.jpg").write_bytes((tmp_path / "1.jpg").read_bytes())
    by_id = write(tmp_path / "by_id", archive(occurrences(9)))
    with pytest.raises(ConfigError, match=r"data\.photo_names=url has no effect, because the archive has no links; leave it out"):
        source_of("data=darwin_core", f"data.path={by_id}", f"data.root={tmp_path}", "data.photo_names=url")
    rows = read_clean(runs.composed(["data=darwin_core", f"data.path={by_id}", f"data.root={tmp_path}"]).data)[0]
    assert rows.files.names.tolist() == ["0.jpg", "1.jpg", "1_2.jpg", *(f"{i}.jpg" for i in range(2, 8))]
    assert rows.excluded == {"record without a photograph": 1}


def test_a_date_without_a_day_is_completed_by_year_month_and_day(tmp_path):
    dates = ["2019", "2019-05", "2019-05-09", "2018", "2019-04", "", "2019-05-01/2019-05-03", "NA"]
    core = occurrences(9, eventDate=[*dates, "2019-05"], year="2019", month="5", day=["7"] * 8 + ["0"])
    rows = read(tmp_path, archive(core), "data.components=[TEMPORAL]", photographs=range(9))
    days = [round(float(day) * 365) + 1 if day == day else None for day in rows.metadata.day]
    assert days == [127, 127, 129, None, 105, 127, 122, 127, 136]  # 127: the 7th of May, which 2018 and 2019-04 contradict
    assert "4 dates from year, month and day" in rows.notes


@pytest.mark.parametrize("day", [("", "0", "NA", "12"), None])
def test_a_month_without_a_day_is_a_date(tmp_path, day):
    """As in the tables of many collections, which do not have eventDate."""
    core = occurrences(4, year="2019", month="5") if day is None else occurrences(4, year="2019", month="5", day=list(day))
    for name, dates in {"none": {}, "empty": {"eventDate": ""}, "year": {"eventDate": "2019"}}.items():
        (tmp_path / name).mkdir()
        members = archive([row | dates for row in core])
        rows = read(tmp_path / name, members, "data.components=[TEMPORAL]", photographs=range(4))
        last = 136 if day is None else 132
        assert [round(float(fraction) * 365) + 1 for fraction in rows.metadata.day] == [136, 136, 136, last]  # the middle of May


def test_an_archive_without_records_is_one_line(tmp_path):
    core = occurrences(2, occurrenceID=["a", "b"])
    members = archive(core, [row | {"occurrenceID": "a"} for row in links(core)])
    members["occurrence.txt"] = members["occurrence.txt"].splitlines(keepends=True)[0]
    assert "photograph of a record that is not in the archive (2)" in refusal(tmp_path, members)


def test_links_separated_by_commas_are_several_photographs(tmp_path):
    cells = ["http://a.org/0.jpg, http://a.org/1.jpg", "http://a.org/2.jpg,https://a.org/3.jpg", "http://a.org/get?x=1,2&n=4.jpg", ""]
    rows = read(tmp_path, archive(occurrences(4, associatedMedia=cells)), "data.max_bad_fraction=0")
    assert rows.files.names.tolist() == [f"{i}.jpg" for i in range(4)] and rows.labels[:, 1].tolist() == [0, 0, 1, 1]
    assert rows.excluded == {"photograph without a file (not downloaded)": 1, "record without a photograph": 1}


def test_a_semicolon_within_a_link_does_not_divide_it(tmp_path):
    cells = ["http://a.org/0.jpg?size=1;page=2;http://a.org/1.jpg; http://a.org/2.jpg;", "3.jpg;4.jpg | 5.jpg", "", ""]
    rows = read(tmp_path, archive(occurrences(4, associatedMedia=cells)), "data.max_bad_fraction=0")
    assert rows.files.names.tolist() == [f"{i}.jpg" for i in range(6)] and rows.excluded == {"record without a photograph": 2}


def test_a_photograph_of_two_records_and_in_two_tables_of_media(tmp_path):
    shared = occurrences(4, associatedMedia=["http://a.org/0.jpg", "", "http://a.org/0.jpg;http://a.org/2.jpg", ""])
    assert read(tmp_path, archive(shared)).files.names.tolist() == ["0.jpg", "0.jpg", "2.jpg"]
    core = occurrences(4)
    members = archive(core, links(core))
    descriptor = members["meta.xml"].decode()
    extension = descriptor[descriptor.index("<extension") : descriptor.index("</archive>")]
    other = extension.replace("multimedia.txt", "image.txt").replace("terms/1.0/Multimedia", "terms/1.0/Image")
    members |= {"image.txt": members["multimedia.txt"], "meta.xml": descriptor.replace(extension, extension + other).encode()}
    (tmp_path / "two").mkdir()
    rows = read(tmp_path / "two", members)
    assert rows.files.names.tolist() == [f"{i}.jpg" for i in range(4) for _ in range(2)] and rows.excluded == {}


def test_links_of_the_records_are_used_if_the_table_of_media_has_no_rows(tmp_path):
    core = occurrences(4, associatedMedia=[f"http://a.org/{i}.jpg" for i in range(4)])
    members = archive(core, links(core))
    members["multimedia.txt"] = members["multimedia.txt"].splitlines(keepends=True)[0]
    assert read(tmp_path, members).files.names.tolist() == [f"{i}.jpg" for i in range(4)]


def test_a_format_in_place_of_the_type_of_a_medium(tmp_path):
    core = occurrences(5)
    kinds = ("image/jpeg", "IMAGE/PNG", "audio/mpeg", "video/mp4", "dcmitype:StillImage")
    rows = read(tmp_path, archive(core, [row | {"type": kinds[i]} for i, row in enumerate(links(core))]))
    assert rows.files.names.tolist() == ["0.jpg", "1.jpg", "4.jpg"]
    assert rows.excluded == {"sound, film or another file that is not a photograph": 2}


def test_the_access_point_of_an_audubon_medium_is_its_link(tmp_path):
    core = occurrences()
    media = [
        {"coreid": row["id"], "identifier": f"urn:uuid:{i}", "accessURI": f"http://a.org/{row['id']}.jpg"} for i, row in enumerate(core)
    ]
    assert len(read(tmp_path, archive(core, media)).files.names) == 8


def test_a_table_in_two_files_a_header_of_other_names_and_a_table_beside_its_descriptor(tmp_path):
    core = occurrences()
    members = archive(core, links(core))
    lines = members["occurrence.txt"].decode().splitlines(keepends=True)
    members["occurrence.txt"] = "".join(["a\tb\tc\td\n", *lines[1:5]]).encode()
    members["more.txt"] = "".join([lines[0], *lines[5:]]).encode()
    both = b"<location>occurrence.txt</location><location>more.txt</location>"
    members["meta.xml"] = members["meta.xml"].replace(b"<location> occurrence.txt </location>", both)
    rows = read(tmp_path, members)
    assert rows.files.names.tolist() == [f"{i}.jpg" for i in range(8)]
    assert any(note.startswith("the first line of occurrence.txt is left out as its header") for note in rows.notes)
    keys = (f"data.path={tmp_path / 'archive/occurrence.txt'}", f"data.root={tmp_path}")
    assert read_clean(runs.composed(["data=darwin_core", *keys]).data)[0].files.names.tolist() == rows.files.names.tolist()


def test_a_line_without_an_end_is_not_read_into_memory(tmp_path):
    core = occurrences()
    members = archive(core, links(core))
    members["occurrence.txt"] = members["occurrence.txt"].rstrip(b"\n") + b"a" * (LONGEST_LINE + (1 << 20))
    assert "a line has more than 16777216 characters" in refusal(tmp_path, members)


def test_values_that_gbif_calls_invalid_become_missing(tmp_path):
    flags = ["COORDINATE_INVALID", "RECORDED_DATE_INVALID;COORDINATE_ROUNDED", "COORDINATE_UNCERTAINTY_METERS_INVALID", "", *["ZERO"] * 4]
    place = {"decimalLatitude": "1.5", "decimalLongitude": "2.5", "coordinateUncertaintyInMeters": "9", "eventDate": "2020-01-01"}
    core = occurrences(issue=flags, **place)
    rows = read(tmp_path, archive(core, links(core)))
    assert known(rows.metadata) == {"latitude": 7, "longitude": 7, "uncertainty": 6, "day": 7, "hour": 0, "elevation": 0}
    assert "1 record flagged RECORDED_DATE_INVALID by GBIF: eventDate set to missing" in rows.notes
    assert "other flags of GBIF, for which nothing is left out: ZERO (4), COORDINATE_ROUNDED (1)" in rows.notes


def test_the_rank_of_a_taxon_limits_its_labels(tmp_path):
    names = [
        ("Quercus robur L.", "SPECIES", "Quercus robur"),
        ("Quercus L.", "GENUS", ""),
        ("Quercus (Lepidobalanus) alba var. latiloba Sarg.", "variety", "Quercus alba"),
        ("Quercus × hispanica Lam.", "", "Quercus × hispanica"),
        ("Quercus sp.", "", ""),
        ("Quercus Linnaeus", "", ""),
        ("Quercus cf. robur", "", ""),
        ("Fagus sylvatica", "especie", "Fagus sylvatica"),
    ]
    core = [{"id": str(i), "family": "Fagaceae", "scientificName": name, "taxonRank": rank} for i, (name, rank, _) in enumerate(names)]
    rows = read(tmp_path, archive(core, links(core)))
    assert rows.tree.ranks == ("family", "genus", "species")
    assert [rows.tree.names[2][c] if c >= 0 else "" for c in rows.labels[:, 2]] == [species for _, _, species in names]
    assert rows.labels[:, 1].tolist() == [1, 1, 1, 1, 1, -1, 1, 0]  # without a rank, a single word may be a family


def test_a_higher_rank_removes_finer_names(tmp_path):
    core = occurrences(taxonRank=["GENUS", "FAMILY", *["SPECIES"] * 6])
    rows = read(tmp_path, archive(core, links(core)))
    assert (rows.labels[:2] < 0).tolist() == [[False, False, True], [False, True, True]] and (rows.labels[2:] >= 0).all()
    assert "not used: names of finer ranks than taxonRank, in 2 records" in rows.notes


def test_species_from_epithets_dates_from_parts_and_elevation_from_either_term(tmp_path):
    core = [
        {"id": str(i), "genus": "Quercus", "specificEpithet": ("robur", "Quercus alba", "sp.")[i % 3], "year": "2020", "month": "5"}
        | {
            "day": str(i),
            "minimumElevationInMeters": "100" if i % 2 else "",
            "elevation": "200",
            "eventDate": "2019-01-01" if i < 2 else "",
        }
        for i in range(8)
    ]
    rows = read(tmp_path, archive(core, links(core), defaults={"family": "Fagaceae"}))
    assert rows.tree.ranks == ("family", "genus", "species") and list(rows.tree.names[2]) == ["Quercus alba", "Quercus robur"]
    assert known(rows.metadata)["day"] == 8 and rows.metadata.elevation.tolist() == [200, 100] * 4


@pytest.mark.parametrize(
    "change, message",
    [
        ({"meta.xml": b"<archive>"}, "data.path: the descriptor meta.xml is not XML: no element found"),
        ({"meta.xml": b"<!DOCTYPE a [<!ENTITY b 'c'>]><archive/>"}, "has a DOCTYPE"),
        ({"meta.xml": b"<archive/>"}, "must have one element `core`, not 0"),
        ({"meta.xml": ("utf-8", "utf-99")}, "cannot be read in the encoding 'utf-99'"),
        ({"meta.xml": ('index="1"', 'index="-1"')}, "has index='-1'; it must be a small number"),
        ({"meta.xml": ('index="1"', 'index="44"')}, "'occurrence.txt' has 4 columns, fewer than the 45 of its descriptor"),
        ({"meta.xml": ("occurrence.txt", "other.txt")}, "does not contain 'other.txt'"),
        ({"meta.xml": ("occurrence.txt", "../../other.txt")}, "does not contain '../../other.txt'"),
        ({"meta.xml": ("terms/genus", "terms/species")}, "column 3 of 'occurrence.txt' is 'genus', and 'species'"),
        ({"occurrence.txt": b""}, "'occurrence.txt' has 1 columns, fewer than"),
        ({"occurrence.txt": ("\tF", "F")}, "no row of 'occurrence.txt' has the 4 cells"),
        (
            {"meta.xml": ("<id ", "<other ")},
            "can be used: record without a photograph (8), photograph of a record that is not in the archive (8)",
        ),
    ],
)
def test_an_archive_that_cannot_be_read_is_one_line(tmp_path, change, message):
    core = occurrences()
    members = archive(core, links(core))
    for name, new in change.items():
        old = members[name]
        members[name] = new if isinstance(new, bytes) else old.replace(*(text.encode() for text in new))
    assert message in refusal(tmp_path, members)


def test_photographs_that_were_not_downloaded_are_one_line(tmp_path):
    core = occurrences()
    assert "data.root: not one of 8 photographs has a file in " in refusal(tmp_path, archive(core, links(core)), photographs=())
    (tmp_path / "other").mkdir()
    message = refusal(tmp_path / "other", archive(core), photographs=())
    assert "none of its records has a file in " in message and "; the first would be '0.jpg'; " in message


def test_a_damaged_container_is_one_line(tmp_path):
    core = occurrences()
    path = write(tmp_path / "a.zip", archive(core, links(core)))
    data = path.read_bytes()
    for name, content in (("cut.zip", data[: len(data) // 2]), ("broken.zip", data.replace(data[60:90], b"x" * 30)), ("empty.zip", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError, match=r"^data\.path: .*") as caught:
            source_of("data=darwin_core", f"data.path={tmp_path / name}")
        assert "\n" not in str(caught.value)
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as file:
        for name in ("a.csv", "b.csv"):
            file.writestr(name, "id,genus\n")
    with pytest.raises(ConfigError, match=r"has several tables \(a.csv, b.csv\) and no meta.xml"):
        source_of("data=darwin_core", f"data.path={tmp_path / 'two.zip'}")
    for absent in ("none.zip", "x" * 5000):
        with pytest.raises(ConfigError, match="does not exist"):
            source_of("data=darwin_core", f"data.path={tmp_path / absent}")


def test_a_link_to_itself_beside_the_tables_is_not_read(tmp_path):
    core = occurrences()
    given = archive_at(tmp_path, archive(core, links(core)))
    (tmp_path / "archive/loop.txt").symlink_to("loop.txt")
    assert len(read_clean(runs.composed(["data=darwin_core", *given, "data.image_size=16"]).data)[0].files.names) == 8


def test_a_pipe_in_place_of_an_archive_is_one_line(tmp_path):
    """A read of it would wait for a writer."""
    os.mkfifo(tmp_path / "a.zip")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(Archive, tmp_path / "a.zip")
        done, _ = concurrent.futures.wait([reading], timeout=30)
        os.close(os.open(tmp_path / "a.zip", os.O_RDWR))  # ends the wait of a failing test
        assert done
        with pytest.raises(ConfigError, match="is not a zip or tar file, a folder or a table"):
            reading.result()
