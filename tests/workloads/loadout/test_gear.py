"""Rules of gear: text, ability points, legality, arrangement on pieces, weapons."""

import json
from pathlib import Path

import numpy as np
import pytest

from linnaeus.errors import ConfigError
from linnaeus.workloads.loadout.builds.archetypes import make_world
from linnaeus.workloads.loadout.game.abilities import ABILITIES, FULL_POINTS, STANDARD, ability_points, main_item, sub_item
from linnaeus.workloads.loadout.game.gear import arrange, from_points, is_full, parse_gear, problem, slots_of_points, to_text
from linnaeus.workloads.loadout.game.weapons import builtin_weapons, read_weapons, weapons_from

SHARED = Path(__file__).parents[4] / "shared" / "data" / "splatoon"


def test_text_is_read_and_written():
    build = parse_gear("Comeback, Swim Speed Up: main sub SUB; special-saver: sub")
    assert build[main_item("comeback")] == 1 and build[sub_item("swim_speed_up")] == 2 and build.sum() == 5
    assert (parse_gear(to_text(build)) == build).all()
    assert dict(zip(ABILITIES, ability_points(build).tolist()))["swim_speed_up"] == 16


@pytest.mark.parametrize(
    "text, line",
    {
        "swim_sped_up: main": "did you mean swim_speed_up",
        "swim_speed_up": "has no slots",
        "swim_speed_up: head": "'head' is not a slot",
        "comeback: sub": "only the main slot of the head",
        "comeback, tenacity": "both need the main slot of the head",
        "swim_speed_up: main main main, haunt": "4 main abilities; a build has 3",
        f"swim_speed_up: {'sub ' * 10}": "10 sub abilities; a build has 9",
        f"swim_speed_up: {'sub ' * 256}": "256 sub abilities; a build has 9",
        f"swim_speed_up: {'main ' * 258}": "258 main abilities; a build has 3",
    }.items(),
)
def test_gear_that_no_build_has_is_one_line(text, line):
    with pytest.raises(ConfigError, match=line) as caught:
        parse_gear(text)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


def test_points_determine_the_slots():
    sums = {10 * mains + 3 * subs: (mains, subs) for mains in range(4) for subs in range(10)}
    assert len(sums) == 40, "every pair has its own sum"
    assert all(slots_of_points(points) == sums.get(points) for points in range(80))
    build = from_points({"comeback": 10, "swim_speed_up": 26, "special_saver": 21})
    assert is_full(build) and ability_points(build).sum() == FULL_POINTS


@pytest.mark.parametrize(
    "points, line",
    [
        ({"swim_speed": 10}, "unknown ability"),
        ({"swim_speed_up": 3.0}, "whole numbers"),
        ({"swim_speed_up": True}, "whole numbers"),
        ({"swim_speed_up": 5}, "add up to"),
        ({"haunt": 3}, "main-only"),
        ({"swim_speed_up": 57, "haunt": 10}, "67 points; a build has 57"),
        ({"swim_speed_up": 27, "special_saver": 3}, "10 sub abilities"),
        ({"swim_speed_up": 10, "Swim Speed Up": 3}, "swim_speed_up are given twice"),
    ],
)
def test_points_that_no_build_has_are_one_line(points, line):
    with pytest.raises(ConfigError, match=line):
        from_points(points)


def test_pieces_hold_four_slots_and_main_only_abilities_are_on_their_piece():
    build = parse_gear("stealth_jump, quick_respawn: main sub sub sub, swim_speed_up: main sub sub")
    gear = arrange(build)
    assert gear["shoes"][0] == "stealth_jump" and {gear["head"][0], gear["clothes"][0]} == {"quick_respawn", "swim_speed_up"}
    subs = [name for _, names in gear.values() for name in names]
    assert len(subs) == 9 and subs.count("quick_respawn") == 3 and subs.count("-") == 4


def test_every_generated_build_is_full_and_legal():
    weapon, builds = make_world(3, 130).draw(3, 0, 2000)
    assert weapon.max() < 130 and all(problem(build) is None for build in builds) and all(is_full(build) for build in builds[:200])
    again = make_world(3, 130).draw(3, 500, 100)
    assert (again[0] == weapon[500:600]).all() and (again[1] == builds[500:600]).all(), "a build is a function of its position"
    common = np.sort(np.bincount(weapon, minlength=130))[::-1]
    assert common[0] > 8 * common[60], "long-tailed"


def test_weapons_have_names_keys_numbers_and_reskins():
    weapons = builtin_weapons()
    assert len(weapons) == 130 and len(weapons.rows) == 143
    splattershot = weapons.find("Splattershot")
    assert splattershot == weapons.find("sshooter") == weapons.find("Hero Shot Replica") == weapons.get("45")
    assert weapons.name(weapons.find("n-zap 85")) == "N-ZAP '85"
    assert weapons_from(weapons.to_dict()).keys == weapons.keys
    with pytest.raises(ValueError):
        weapons_from([*weapons.to_dict(), ["bow", "1"]])  # a row that is cut off is not left out
    with pytest.raises(ConfigError, match="did you mean splattershot"):
        weapons.find("splatershot")


def test_a_name_that_two_weapons_have_is_ambiguous():
    """With the last of them a wanted weapon would be answered with the gear of another one."""
    rows = [["bow", "1", "Bow", "bow"], ["bow_red", "2", "Bow", "bow"], ["brush", "3", "Brush", "brush"], ["broom", "4", "Brush!", "broom"]]
    weapons = weapons_from(rows)
    with pytest.raises(ConfigError, match="'Brush' is the name of broom and brush; use one of these keys"):
        weapons.find("Brush")
    assert weapons.find("brush") == weapons.get("3") == weapons.keys.index("brush"), "a key is not ambiguous"
    assert weapons.find("Bow") == weapons.get("2") == weapons.keys.index("bow"), "a reskin is the same weapon"
    near = weapons_from([["brush", "3", "Broom", "brush"], ["broom", "4", "Whisk", "broom"]])
    assert near.get("broom") == near.keys.index("broom"), "the name of another weapon has hidden the key"


@pytest.mark.parametrize("last", [["broom", "3", "Broom", "broom"], ["broom", "4", "Broom", "bow_red"]], ids=["number", "reskin"])
def test_a_list_in_which_weapons_cannot_be_told_apart_is_refused(last):
    rows = [["bow", "1", "Bow", "bow"], ["bow_red", "2", "Bow", "bow"], ["brush", "3", "Brush", "brush"], last]
    with pytest.raises(ValueError):
        weapons_from(rows)


def test_the_published_list_of_weapons_is_the_built_in_one(tmp_path):
    if not SHARED.exists():
        pytest.skip("no list of weapons at ../shared/data/splatoon")
    assert read_weapons(str(SHARED / "weapon.json")).to_dict() == builtin_weapons().to_dict()
    names = {entry["key"] for entry in json.loads((SHARED / "ability.json").read_text())}
    assert names == set(ABILITIES) and len(STANDARD) == 14
    entries = [{"key": row.key, "name": {"en_US": row.name}, "reskin_of": row.reskin_of} for row in builtin_weapons().rows]
    (tmp_path / "weapon.json").write_text(json.dumps(entries), encoding="utf-8-sig")  # as editors on Windows write it
    assert read_weapons(str(tmp_path / "weapon.json")).keys == builtin_weapons().keys
    (tmp_path / "weapon.json").write_text('[{"name": 1}]')
    with pytest.raises(ConfigError, match=r"data\.weapons"):
        read_weapons(str(tmp_path / "weapon.json"))
