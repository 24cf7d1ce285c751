"""Default groups of formats that have observations or events: photographs of one observation are on one side of a split."""

import numpy as np
import pytest

from linnaeus.workloads.taxonomy.observations import VALIDATION
from linnaeus.workloads.taxonomy.store import prepare_store
from linnaeus.workloads.taxonomy.store.store_source import build_source
from tests import runs
from tests.workloads.taxonomy.sources.conftest import SMALL, source_of
from tests.workloads.taxonomy.sources.darwin_core_writer import archive
from tests.workloads.taxonomy.sources.test_camtrap_dp import BADGER, FOX, Trap, clock, photograph, seen
from tests.workloads.taxonomy.sources.test_darwin_core import BEECH, OAK, archive_at
from tests.workloads.taxonomy.sources.test_inat_open_data import OpenData, given, open_data

SEEDS = range(4)


def divided(source, unit):
    """Return the number of units with photographs on both sides. `unit`: function from the name of a photograph to its unit."""
    sides = {}
    for name, side in zip(source.ids.tolist(), source.split.tolist(), strict=True):
        sides.setdefault(unit(name), set()).add(side)
    return sum(len(found) > 1 for found in sides.values())


def each_on_one_side(keys, unit, column):
    """Check that units are divided without groups, and not by default, which uses `column`. Return the source of the default."""
    assert any(divided(source_of(*keys, "data.group_column=null", f"data.split_seed={seed}"), unit) for seed in SEEDS)
    for seed in SEEDS:
        source = source_of(*keys, f"data.split_seed={seed}")
        assert divided(source, unit) == 0 and (source.split == VALIDATION).any()
        assert len(set(source.group.tolist())) == len({unit(name) for name in source.ids.tolist()})
        assert any(note.startswith("columns used") and note.endswith(f"{column} as group") for note in source.notes)
    return source


def pairs(records, folder) -> OpenData:
    """Write the records so that two consecutive photographs of a species belong to one observation."""
    data = open_data(records, folder)
    taxon = {row[0]: row[5] for row in data.tables["observations"]}
    last = None
    for row in data.tables["photos"][1:]:
        own = row[2]
        if last is not None and taxon[own] == taxon[last]:
            row[2], last = last, None
        else:
            last = own
    return data.write("photos")


def test_an_observation_of_inaturalist(records, tmp_path):
    data = pairs(records, tmp_path)
    observation = {f"photos/{row[1]}/medium.jpg": row[2] for row in data.tables["photos"][1:]}
    each_on_one_side(given(data), observation.get, "observation_uuid")
    by_observer = source_of(*given(data, "data.group_column=observer_id"))
    assert len(set(by_observer.group.tolist())) == 7  # the user's column wins


def twelve(**columns):
    return [{"id": str(i), **(OAK if i % 2 else BEECH)} | {name: cell(i) for name, cell in columns.items()} for i in range(12)]


def three_each(rows, **columns):
    """Return three photographs 0 to 35 of each of 12 records."""
    return [{"coreid": row["id"], "identifier": f"http://a.org/{3 * i + k}.jpg"} | columns for i, row in enumerate(rows) for k in range(3)]


@pytest.mark.parametrize("form", ["all", "some", "none"])
def test_an_occurrence(form, tmp_path):
    """Of ids of occurrences, all, some or none are known."""
    cells = {"all": lambda i: f"o{i}", "some": lambda i: f"o{i}" if i % 3 else ""}
    rows = twelve(occurrenceID=cells[form]) if form in cells else twelve()
    keys = ["data=darwin_core", *archive_at(tmp_path, archive(rows, three_each(rows)), range(36))]
    source = each_on_one_side(keys, lambda name: int(name[:-4]) // 3, "occurrenceID")
    assert len(source.ids) == 36


def test_a_record_without_any_id(tmp_path):
    """Three links in the cell associatedMedia of a record, in a table without ids."""
    rows = [
        {**(OAK if i % 2 else BEECH), "associatedMedia": " | ".join(f"http://a.org/{3 * i + k}.jpg" for k in range(3))} for i in range(12)
    ]
    text = "\n".join("\t".join(line) for line in [rows[0], *(row.values() for row in rows)])
    keys = ["data=darwin_core", *archive_at(tmp_path, {"occurrence.txt": text.encode()}, range(36))]
    each_on_one_side(keys, lambda name: int(name[:-4]) // 3, "occurrenceID")


def test_an_event_core(tmp_path):
    """Two occurrences of each event."""
    core = [{"id": f"e{i}", "eventDate": "2020-05-01"} for i in range(12)]
    found = [{"coreid": f"e{i // 2}", "occurrenceID": str(i), **(OAK if i // 2 % 2 else BEECH)} for i in range(24)]
    media = [
        {"coreid": row["coreid"], "occurrenceID": row["occurrenceID"], "identifier": f"http://a.org/{i}.jpg"} for i, row in enumerate(found)
    ]
    keys = ["data=darwin_core", *archive_at(tmp_path, archive(core, media, kind="Event", events=found), range(24))]
    each_on_one_side(keys, lambda name: int(name[:-4]) // 2, "eventID")


def test_records_that_are_taxa_are_not_groups(tmp_path):
    rows = [{"id": name, **taxon} for name, taxon in (("1", OAK), ("2", BEECH))]
    media = [{"coreid": str(1 + i % 2), "identifier": f"http://a.org/{i}.jpg"} for i in range(20)]
    source = source_of("data=darwin_core", *archive_at(tmp_path, archive(rows, media, kind="Taxon"), range(20)))
    assert source.group is None and (source.split == VALIDATION).any()


@pytest.mark.parametrize("form", ["event-level", "named", "media-level", "mixed"])
def test_an_event_of_a_camera_trap(form, tmp_path):
    """Three photographs within two minutes, eight times; `named`: with an eventID. Of the mixed form, one photograph of an event has its
    own observation without an eventID."""
    trap = Trap(tmp_path / "package")
    trap.observations, trap.media = [], []
    for event in range(8):
        start, name = 60 * event, (FOX, BADGER)[event % 2]
        trap.media += [photograph(trap.folder, f"t{event}-{k}", start + k) for k in range(3)]
        own = {"eventID": f"e{event}"} if form in ("named", "media-level") else {}
        if form == "media-level":
            trap.observations += [seen(name, f"t{event}-{k}", observationID=f"m{event}-{k}", **own) for k in range(3)]
            continue
        trap.observations.append(seen(name, window=(start, start + 2), observationID=f"o{event}", **own))
        if form == "mixed":
            trap.observations.append(seen(name, f"t{event}-1", observationID=f"m{event}"))
    trap.source()  # writes the package
    keys = ["data=camtrap_dp", f"data.path={trap.folder}", "data.validation_fraction=0.3"]
    source = each_on_one_side(keys, lambda name: name.partition("-")[0], "eventID")
    assert any("data.group_column=deploymentID keeps them" in note for note in source.notes)
    assert len(set(source_of(*keys, "data.group_column=mediaID").group.tolist())) == 24  # the user's column wins


def test_events_that_share_a_photograph_are_one(tmp_path):
    """A photograph with its own observation is within the time windows of two events."""
    trap = Trap(tmp_path / "package")
    trap.media += [photograph(trap.folder, f"t{k}", k) for k in range(5)]
    windows = [seen(FOX, window=(0, 2), eventID="one", observationID="1"), seen(BADGER, window=(2, 4), eventID="two", observationID="2")]
    trap.observations += [*windows, seen(FOX, "t2", observationID="3")]
    assert windows[0]["eventEnd"] == clock(2)
    source = trap.source()
    groups = {int(group) for name, group in zip(source.ids.tolist(), source.group.tolist(), strict=True) if name.startswith("t")}
    assert len(groups) == 1 and len(source.ids) == 35


def test_a_package_without_events_has_no_groups(tmp_path):
    assert Trap(tmp_path / "package").source().group is None


def test_a_store_keeps_the_groups_and_the_other_columns(records, tmp_path):
    data = pairs(records, tmp_path / "open")
    observation = {f"photos/{row[1]}/medium.jpg": row[2] for row in data.tables["photos"][1:]}
    arguments = ["inat_open_data", str(tmp_path / "store"), f"data.path={data.folder}", "--images=original", "--processes=1"]
    assert prepare_store.main(arguments) == 0
    config = [["data=store", f"data.path={tmp_path / 'store'}", *SMALL, *keys] for keys in ([], ["data.group_column=observer_id"])]
    ours, by_observer = (build_source(runs.composed(keys).data) for keys in config)
    assert divided(ours, observation.get) == 0 and np.array_equal(ours.split, source_of(*given(data)).split)
    assert len(set(by_observer.group.tolist())) == 7
    used = [note for note in by_observer.notes if note.startswith("columns used")]
    assert len(used) == 1 and used[0].endswith(", observer_id as group") and "observation_uuid" not in used[0]
    assert any(note.startswith("columns not used") and "observation_uuid" in note for note in by_observer.notes)
