"""Sources of builds: battles of stat.ink, token tables, slot tables. The files are made here from generated builds."""

import csv
import json
import zipfile

import numpy as np
import pytest

from linnaeus.errors import ConfigError
from linnaeus.workloads import build_workload
from linnaeus.workloads.loadout.builds.archetypes import make_world
from linnaeus.workloads.loadout.builds.battle_files import PLAYERS, share_winners, to_points
from linnaeus.workloads.loadout.builds.build_table import Builds
from linnaeus.workloads.loadout.builds.published_builds import CODES, builds_of_tokens
from linnaeus.workloads.loadout.builds.skipped_builds import MOST_REASONS
from linnaeus.workloads.loadout.game.abilities import ABILITIES, ITEMS, MAIN_ITEMS, ability_points
from linnaeus.workloads.loadout.game.gear import slot_items
from linnaeus.workloads.loadout.game.token_code import PointsCode
from linnaeus.workloads.loadout.game.weapons import builtin_weapons
from tests import runs

WEAPONS = builtin_weapons()
WEAPON, ITEMS_OF = make_world(0, 130).draw(0, 0, 70)
NUMBERS = {row.key: row.number for row in WEAPONS.rows}
FRACTIONS = ["data.validation_fraction=0.2", "data.test_fraction=0.0"]


def abilities(build: np.ndarray) -> str:
    points = ability_points(build)
    return json.dumps({name: int(p) / 10 for name, p in zip(ABILITIES, points) if p})


def write_battles(path, change=lambda rows: rows):
    """Write 10 battles of the first 70 builds; A1 has builds that are not among them. Alpha wins every third battle."""
    columns = ["# season", "lobby", "win", *(f"{p}-{c}" for p in ("A1", *PLAYERS) for c in ("weapon", "kill", "abilities"))]
    rows = []
    for battle in range(10):
        row = {"# season": "s1", "lobby": "regular", "win": "alpha" if battle % 3 == 0 else "bravo"}
        row |= {"A1-weapon": "no_such_weapon", "A1-abilities": "?"}
        for i, player in enumerate(PLAYERS):
            n = 7 * battle + i
            row |= {f"{player}-weapon": WEAPONS.keys[WEAPON[n]], f"{player}-kill": 3, f"{player}-abilities": abilities(ITEMS_OF[n])}
        rows.append(row)
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, columns)
        table.writeheader()
        table.writerows(change(rows))
        file.write("# a comment\n")
    assert path.stat().st_size < 50_000
    return path


def split_of(source, path, *more):
    return build_workload(runs.composed(["workload=loadout", f"data={source}", f"data.path={path}", *FRACTIONS, *more])).split


def all_builds(split):
    return sorted((int(w), tuple(b)) for part in (split.train, split.validation) for w, b in zip(part.weapon, part.items.tolist()))


WANTED = sorted((int(w), tuple(b)) for w, b in zip(WEAPON, ITEMS_OF.tolist()))


def test_battles_are_read_without_the_uploader(tmp_path):
    split = split_of("battles", write_battles(tmp_path / "day.csv"))
    assert all_builds(split) == WANTED and split.notes == ()
    with zipfile.ZipFile(tmp_path / "days.zip", "w") as archive:
        archive.write(tmp_path / "day.csv", "2024/day.csv")
        archive.writestr("__MACOSX/2024/._day.csv", b"\x00\x05\x16\x07\xff")  # macOS adds such a file to a zip
    (tmp_path / "._day.csv").write_bytes(b"\xff")
    assert split_of("battles", tmp_path / "days.zip").fingerprint == split.fingerprint == split_of("battles", tmp_path).fingerprint


def test_suffixes_of_battles_may_be_in_upper_case(tmp_path):
    """A day in upper case was left out without a word, and a zip was said not to be UTF-8."""
    (tmp_path / "days").mkdir()
    write_battles(tmp_path / "days" / "a.csv", lambda rows: rows[:5])
    write_battles(tmp_path / "days" / "B.CSV", lambda rows: rows[5:])
    with zipfile.ZipFile(tmp_path / "DAYS.ZIP", "w") as archive:
        for name in ("a.csv", "B.CSV"):
            archive.write(tmp_path / "days" / name, name)
    for place in ("days", "DAYS.ZIP"):
        assert all_builds(split_of("battles", tmp_path / place)) == WANTED


def test_battles_of_winners_and_copies(tmp_path):
    file = write_battles(tmp_path / "day.csv", lambda rows: rows + rows)
    assert len(all_builds(split_of("battles", file, "data.copies=1"))) == 70
    winners = all_builds(split_of("battles", file, "data.win_share=1", "data.copies=1"))
    wanted = [n for n in range(70) if (n % 7 < 3) == (n // 7 % 3 == 0)]
    assert winners == sorted(WANTED[i] for i in [WANTED.index((int(WEAPON[n]), tuple(ITEMS_OF[n].tolist()))) for n in wanted])
    assert len(all_builds(split_of("battles", file, "data.win_share=0.5"))) == 2 * min(2 * len(wanted), 140 - 2 * len(wanted))


def test_the_share_of_winners_is_that_of_the_builds_that_are_left_after_the_copies(tmp_path):
    """Each build occurs three times."""
    winners = set(all_builds(split_of("battles", write_battles(tmp_path / "day.csv"), "data.win_share=1")))
    split = split_of("battles", write_battles(tmp_path / "more.csv", lambda rows: rows * 3), "data.win_share=0.25", "data.copies=1")
    found = all_builds(split)
    assert sum(build in winners for build in found) / len(found) == pytest.approx(0.25, abs=0.02) and len(found) > 20
    assert any("left out: more than data.copies=1 copies" in note for note in split.notes)
    assert any(note.endswith("left out for data.win_share=0.25") for note in split.notes)


def test_a_battle_without_a_winner_is_counted_and_named(tmp_path):
    """Builds of both teams would count as builds of losers."""
    file = write_battles(tmp_path / "day.csv", lambda rows: [rows[0] | {"win": "draw"}, *rows[1:]])
    with pytest.raises(ConfigError, match=r"1 of 64 builds of .*such as day\.csv, row 2: the winner is 'draw', not alpha or bravo"):
        split_of("battles", file)
    assert len(all_builds(split_of("battles", file, "data.max_bad_fraction=0.1"))) == 63


def test_of_many_reasons_the_most_frequent_ones_are_named(tmp_path):
    def change(rows):
        rows[9]["A2-weapon"] = rows[9]["A3-weapon"] = "bow"
        wrong = {f"{player}-abilities": player for player in ("A2", "A3", "B1", "B2", "B3")}
        return [row | {key: f"{player}{i}" for key, player in wrong.items()} for i, row in enumerate(rows[:9])] + rows[9:]

    notes = split_of("battles", write_battles(tmp_path / "day.csv", change), "data.max_bad_fraction=1").notes
    assert notes[0].startswith("2 of 70 builds left out: unknown weapon 'bow'") and len(notes) == MOST_REASONS + 1
    assert notes[-1] == f"{46 - MOST_REASONS} of 70 builds left out for {46 - MOST_REASONS} other reasons"


def test_a_file_whose_builds_are_all_left_out_is_one_line_with_the_reason(tmp_path):
    """Another split would not help."""
    points = {f"{player}-abilities": json.dumps({"comeback": 1.0}) for player in PLAYERS}
    file = write_battles(tmp_path / "day.csv", lambda rows: [row | points for row in rows])
    with pytest.raises(ConfigError, match=r"all 70 builds of .*day.csv are left out, most of them: the points do not sum to 57"):
        split_of("battles", file)


def test_no_winner_is_left_out_by_rounding():
    won = np.arange(10) < 3  # 0.7 x (3 / 0.7) is 2.9999999999999996
    kept = share_winners(Builds(np.arange(10), ITEMS_OF[:10]), won, 0.7, 0)
    assert kept.weapon[:3].tolist() == [0, 1, 2] and len(kept) == 4


def test_wrong_builds_of_battles_are_counted_and_named(tmp_path):
    def change(rows):
        rows[0]["A2-abilities"] = json.dumps({"swim_speed_up": 1.0})
        rows[1]["B4-abilities"] = json.dumps({"swim_sped_up": 5.7})
        rows[2]["B1-weapon"] = "bow"
        return rows

    file = write_battles(tmp_path / "day.csv", change)
    with pytest.raises(ConfigError, match=r"2 of 70 builds of .*day.csv are wrong.*max_bad_fraction"):
        split_of("battles", file)
    split = split_of("battles", file, "data.max_bad_fraction=0.1")
    assert len(all_builds(split)) == 67 and len(split.notes) == 3
    text = "\n".join(split.notes)
    assert "do not sum to 57 (first: day.csv, row 2, A2)" in text and "unknown weapon 'bow'" in text and "unknown ability" in text


NOT_TENTHS = ["[1]", '{"swim_speed_up": 0.33}', '{"swim_speed_up": "x"}', "{", '{"a": 1e999}', '{"swim_speed_up": true}']
NOT_TENTHS += ['{"swim_speed_up": 1.0, "swim_speed_up": 4.7}']  # the last value alone would be used


@pytest.mark.parametrize("text", [pytest.param("[" * 100_000, id="deep"), *NOT_TENTHS])
def test_abilities_that_are_not_tenths_of_points(text):
    with pytest.raises(ConfigError, match="points divided by ten"):
        to_points(text)


def test_a_row_of_battles_that_is_cut_off_is_counted_and_named(tmp_path):
    file = write_battles(tmp_path / "day.csv")
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:10], lines[10][: len(lines[10]) // 2]]) + "\n")
    with pytest.raises(ConfigError, match=r"1 of 64 builds of .* are wrong, such as day.csv, row 11: a row has \d+ values, not 27"):
        split_of("battles", file)
    split = split_of("battles", file, "data.max_bad_fraction=0.1")
    assert len(all_builds(split)) == 63 and "row 11" in split.notes[0]


@pytest.fixture
def default_limit():
    """Set the limit of a cell of `csv` to its default during a test: it is one of the process, and other sources change it."""
    before = csv.field_size_limit(131_072)
    yield
    csv.field_size_limit(before)


def test_files_of_battles_that_cannot_be_read_to_the_end_are_one_line(tmp_path, default_limit):
    file = write_battles(tmp_path / "day.csv")
    whole = file.read_bytes()
    with zipfile.ZipFile(tmp_path / "days.zip", "w") as archive:
        archive.write(file, "day.csv")
    packed = (tmp_path / "days.zip").read_bytes()
    (tmp_path / "days.zip").write_bytes(packed.replace(b"regular", b"regulax", 1))  # the checksum of the member is wrong
    flags = packed.index(b"PK\x01\x02") + 8  # of the member; bit 0: encrypted
    (tmp_path / "locked.zip").write_bytes(packed[:flags] + b"\1" + packed[flags + 1 :])
    with pytest.raises(ConfigError, match=r"locked.zip cannot be read \(File 'day.csv' is encrypted"):
        split_of("battles", tmp_path / "locked.zip")
    for content, line in ((whole + b"caf\xe9\n", "codec can't decode"), (whole + b'"' + b"x" * 200_000 + b'"\n', "field larger")):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=rf"day.csv.*cannot be read .*{line}"):
            split_of("battles", file)
    with pytest.raises(ConfigError, match=r"day.csv of .*days.zip cannot be read .*CRC"):
        split_of("battles", tmp_path / "days.zip")


def test_the_message_about_bad_builds_names_a_bad_one(tmp_path):
    def change(rows):
        rows[0]["A2-abilities"] = json.dumps({"swim_speed_up": 1.0})  # legal, but not full
        rows[1]["B4-abilities"] = json.dumps({"swim_sped_up": 5.7})
        return rows

    with pytest.raises(ConfigError, match=r"1 of 70 builds .*row 3, B4: unknown ability"):
        split_of("battles", write_battles(tmp_path / "day.csv", change))


def write_tokens(folder):
    code = PointsCode()
    (folder / "vocab.json").write_text(json.dumps({name: n + 5 for n, name in enumerate(code.names)}))
    numbers = {f"weapon_id_{NUMBERS[key]}": n for n, key in enumerate(WEAPONS.keys)}
    (folder / "weapon_vocab.json").write_text(json.dumps(numbers), encoding="utf-8-sig")  # as editors on Windows write it
    rows = [f"{json.dumps([int(t) + 5 for t in np.flatnonzero(hot)])}\t{w}" for hot, w in zip(code.multi_hot(ITEMS_OF), WEAPON)]
    path = folder / "tokens.tsv"
    path.write_text("ability_tags\tweapon_id\n" + "\n".join(rows) + "\n")
    return path


def test_a_token_table(tmp_path):
    file = write_tokens(tmp_path)
    found, code = all_builds(split_of("builds", file)), PointsCode()
    hot = lambda rows: sorted((w, code.multi_hot(np.array([b]))[0].tobytes()) for w, b in rows)
    assert hot(found) == hot(WANTED), "the tokens are the same, whichever build has them"
    table = file.read_text()
    file.write_text(table + "[5, 999]\t3\n[7]\t3\n[Infinity]\t3\n" + table.splitlines()[1].replace(",", ".7,", 1) + "\n")
    with pytest.raises(ConfigError, match="4 of 74 builds"):  # 14.7 is not the token 14
        split_of("builds", file)
    (tmp_path / "vocab.json").unlink()
    with pytest.raises(ConfigError, match=r"vocab\.json beside the token table"):
        split_of("builds", file)


WRONG_NUMBERS = ['{"a": 1e999}', '{"a": 2.5}', '{"a": true}', '{"a": "1"}', '{"a": 1, "b": 1}', '{"a": 1, "a": 2}', "[1]"]


@pytest.mark.parametrize("text", [pytest.param("[" * 100_000, id="deep"), *WRONG_NUMBERS])
def test_a_vocabulary_without_one_number_for_each_name_is_one_line(tmp_path, text):
    """With the last of two names of a number, other builds would be trained."""
    file = write_tokens(tmp_path)
    (tmp_path / "weapon_vocab.json").write_text(text)
    with pytest.raises(ConfigError, match=r"weapon_vocab\.json beside the token table cannot be read"):
        split_of("builds", file)


def test_a_list_of_weapons_that_is_nested_too_deeply_is_one_line(tmp_path):
    (tmp_path / "weapon.json").write_text("[" * 100_000)
    with pytest.raises(ConfigError, match=r"data\.weapons: .* cannot be read"):
        split_of("battles", write_battles(tmp_path / "day.csv"), f"data.weapons={tmp_path / 'weapon.json'}")


@pytest.mark.parametrize("name", ["a\u2028b", "a\x0bb", "a\x85b", '"a\nb"'], ids=ascii)
@pytest.mark.parametrize("write", [lambda folder: write_slots(folder / "builds.csv"), write_tokens], ids=["slots", "tokens"])
def test_a_cell_may_have_any_line_break(tmp_path, write, name):
    """Names of builds in a first column, which is not read."""
    file = write(tmp_path)
    separator = "\t" if file.suffix == ".tsv" else ","
    wanted = split_of("builds", file)
    header, *rows = file.read_text().splitlines()
    text = "\n".join([f"name{separator}{header}", *(f"{name}{separator}{row}" for row in rows)])
    file.write_text(text, encoding="utf-8")
    split = split_of("builds", file)
    assert (split.fingerprint, split.notes) == (wanted.fingerprint, wanted.notes)


def test_builds_of_tokens_have_exactly_these_tokens():
    code = PointsCode()
    for build, hot in zip(ITEMS_OF, code.multi_hot(ITEMS_OF)):
        builds = builds_of_tokens(tuple(sorted(code.names[t] for t in np.flatnonzero(hot))))
        assert any((found == build).all() for found in builds)
        assert all((code.multi_hot(found[None])[0] == hot).all() and found.sum() == 12 for found in builds)
    assert builds_of_tokens(("swim_speed_up_12",)) == (), "lower tokens are missing"
    assert builds_of_tokens(("swim_speed_up_\u00b2",)) == (), "a digit that is no number"


def write_slots(path):
    codes = {ability: code for code, ability in CODES.items()}
    lines = ["buildid,slotIndex,weaponSplId,tier,ability"]
    for number, (w, slots) in enumerate(zip(WEAPON, slot_items(ITEMS_OF))):
        for place, item in enumerate(slots):
            slot = 0 if item < MAIN_ITEMS else place % 3 + 1
            lines.append(f"{number},{slot},{NUMBERS[WEAPONS.keys[w]]},{number % 3 + 1},{codes[ITEMS[item]]}")
    path.write_text("\n".join(lines) + "\n")
    assert path.stat().st_size < 50_000
    return path


def test_a_slot_table(tmp_path, default_limit):
    file = write_slots(tmp_path / "builds.csv")
    assert all_builds(split_of("builds", file)) == WANTED
    assert len(all_builds(split_of("builds", file, "data.tiers=[1]"))) == 24
    with pytest.raises(ConfigError, match=r"data\.tiers is \[4, 9\], but .*builds.csv has the tiers 1, 2, 3"):
        split_of("builds", file, "data.tiers=[4,9]")
    file.write_text(file.read_text() + "99,0,40,1,XYZ\n98,0,40,1,SSU\n97,0,40\n96,4,40,1,SSU\n")
    split = split_of("builds", file, "data.max_bad_fraction=0.1")
    text = "".join(split.notes)
    assert (
        len(split.notes) == 4
        and "ability code 'XYZ'" in text
        and "ability code 'SSU' in slot '4'" in text
        and "fewer than 12 slots" in text
        and "cut off (first: builds.csv, line" in text
    )
    file.write_text(file.read_text() + f"1,0,40,1,{'x' * 200_000}\n")
    with pytest.raises(ConfigError, match=r"cannot be read \(field larger"):
        split_of("builds", file)


def test_the_code_bru_is_sub_power_up():
    assert CODES["BRU"] == "sub_power_up" and set(CODES.values()) == set(ABILITIES) and len(CODES) == 26


@pytest.mark.parametrize(
    "source, text, line", [("battles", "a,b\n1,2\n", "no column"), ("builds", "a,b\n1,2\n", "no column for the build")]
)
def test_another_file_is_one_line(tmp_path, source, text, line):
    (tmp_path / "other.csv").write_text(text)
    with pytest.raises(ConfigError, match=line):
        split_of(source, tmp_path / "other.csv")
    with pytest.raises(ConfigError, match="does not exist"):
        split_of(source, tmp_path / "none.csv")
