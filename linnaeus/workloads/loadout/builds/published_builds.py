"""Read tables of builds that players publish, in two forms.

- Token table (SplatNLP trains on this form): tab-separated; `ability_tags` is a JSON list of token numbers, `weapon_id` a number. The files
  vocab.json and weapon_vocab.json beside the table are JSON objects {name: number}. Tokens are thresholds of ability points, which several
  builds may share. Of these, the build with its main slots on the abilities with the most points is used, and the row is counted.
- Slot table (community sites export this form): a row for each slot, with columns for the build, the slot (0: main), the number of the
  weapon, the tier of the build and the code of the ability. The code BRU is Sub Power Up.
"""

from __future__ import annotations

import csv
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from linnaeus.errors import ConfigError
from linnaeus.files import with_distinct_keys
from linnaeus.workloads.loadout.builds.build_table import Builds
from linnaeus.workloads.loadout.builds.skipped_builds import SkippedBuilds
from linnaeus.workloads.loadout.game.abilities import ABILITIES, FULL_POINTS, ITEMS, MAIN_SLOTS, PIECE_OF, SUB_SLOTS, main_item, sub_item
from linnaeus.workloads.loadout.game.gear import empty_build, is_full, problem
from linnaeus.workloads.loadout.game.token_code import SPECIAL, THRESHOLDS
from linnaeus.workloads.loadout.game.weapons import Weapons

CODES = {
    **{"ISM": "ink_saver_main", "ISS": "ink_saver_sub", "IRU": "ink_recovery_up", "RSU": "run_speed_up", "SSU": "swim_speed_up"},
    **{"SCU": "special_charge_up", "SS": "special_saver", "SPU": "special_power_up", "QR": "quick_respawn", "QSJ": "quick_super_jump"},
    **{"BRU": "sub_power_up", "RES": "ink_resistance_up", "SRU": "sub_resistance_up", "IA": "intensify_action"},
    **{"OG": "opening_gambit", "LDE": "last_ditch_effort", "T": "tenacity", "CB": "comeback", "NS": "ninja_squid", "H": "haunt"},
    **{"TI": "thermal_ink", "RP": "respawn_punisher", "AD": "ability_doubler", "SJ": "stealth_jump", "OS": "object_shredder"},
    "DR": "drop_roller",
}
SLOT_NUMBERS = ("0", "1", "2", "3")  # of a piece: the main slot and the sub slots
_LEVELS = {str(threshold) for threshold in THRESHOLDS}
COLUMNS = {  # of a slot table: accepted names in lower case, without underscores
    **{"build": ("buildid",), "slot": ("slotindex", "slot"), "weapon": ("weaponsplid", "weapon", "weaponid")},
    **{"tier": ("tier",), "ability": ("ability",)},
}


def read_table(path: Path, weapons: Weapons, tiers: Sequence[int] | None, skipped: SkippedBuilds) -> Builds:
    """Return the full builds of a token table or a slot table (see the module). Builds that are left out are recorded in `skipped`.

    tiers: tiers of a slot table to read; None: all. Raise `ConfigError` for a file in neither form, for `tiers` with a token table, and
    for a slot table that has other tiers only."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"data.path: {path} cannot be read ({str(error)[:100]}); use a table of builds") from None
    header = text.split("\n", 1)[0].strip()
    try:
        if "ability_tags" in header:
            if tiers is not None:
                raise ConfigError("data.tiers has no effect on a token table; use data.tiers=null")
            found = list(_token_rows(path, text, weapons, skipped))
        else:
            found = list(_slot_builds(path, text, weapons, tiers, skipped))
    except csv.Error as error:
        raise ConfigError(f"data.path: {path} cannot be read ({str(error)[:100]}); use a table of builds") from None
    items = np.array([build for _, build in found], np.int8).reshape(-1, len(ITEMS))
    return Builds(np.array([weapon for weapon, _ in found], np.int64), items)


# -- token tables ----------------------------------------------------------------------------------------------------------------


def _token_rows(path: Path, text: str, weapons: Weapons, skipped: SkippedBuilds) -> Iterator[tuple[int, np.ndarray]]:
    tokens, weapon_names = (_numbered(path.with_name(name)) for name in ("vocab.json", "weapon_vocab.json"))
    shared = 0
    for number, row in enumerate(csv.DictReader(text.split("\n"), delimiter="\t"), 2):
        skipped.read += 1
        where = f"{path.name}, line {number}"
        try:
            numbers = json.loads(row["ability_tags"])
            if any(type(token) is not int for token in numbers):
                raise ValueError("a token is not a whole number")
            names = [tokens[token] for token in numbers]
            weapon = weapons.get(weapon_names[int(row["weapon_id"])].removeprefix("weapon_id_"))
        except (ValueError, TypeError, KeyError, RecursionError):
            skipped.wrong("the row has no tokens or weapon of the vocabularies", where)
            continue
        builds = builds_of_tokens(tuple(sorted(set(names) - set(SPECIAL))))
        if weapon is None or not builds:
            skipped.wrong("unknown weapon" if weapon is None else "no build with 57 points has these tokens", where)
            continue
        shared += len(builds) > 1
        yield weapon, builds[0]
    skipped.shared = shared


def _numbered(path: Path) -> dict[int, str]:
    """Return {number: name} from a vocabulary file, a JSON object {name: number}. Raise `ConfigError` if the file cannot be read, and for a
    number that is not whole or that two names have."""
    try:
        numbers = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=with_distinct_keys)
        if wrong := [name for name, number in numbers.items() if type(number) is not int]:
            raise ValueError(f"{wrong[0][:20]!r} has no whole number")
        names = {number: name for name, number in numbers.items()}
        if len(names) < len(numbers):
            raise ValueError("two names have the same number")
        return names
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"data.path: {path} beside the token table cannot be read ({str(error)[:80]}); copy the vocabulary there"
        ) from None


@functools.lru_cache(maxsize=100_000)
def builds_of_tokens(names: tuple[str, ...]) -> tuple[np.ndarray, ...]:
    """Return all full builds, int8 [40] each, whose tokens of `PointsCode` are exactly `names`; () if no build has them.

    The build whose main slots are on the abilities with the most points comes first."""
    base, tiers = empty_build(), dict[str, set[int]]()
    for name in names:
        if name in PIECE_OF:
            base[main_item(name)] = 1
            continue
        ability, _, level = name.rpartition("_")
        if ability not in ABILITIES or level not in _LEVELS:
            return ()
        tiers.setdefault(ability, set()).add(int(level))
    if any(levels != set(THRESHOLDS[: len(levels)]) for levels in tiers.values()) or problem(base) is not None:
        return ()
    found = []
    for slots in _slots_of_tiers([(name, len(levels)) for name, levels in tiers.items()], MAIN_SLOTS - int(base.sum()), SUB_SLOTS):
        build = base.copy()
        for name, (main, sub) in slots.items():
            build[main_item(name)], build[sub_item(name)] = main, sub
        found.append((-sum(main * len(tiers[name]) for name, (main, _) in slots.items()), build))
    return tuple(build for _, build in sorted(found, key=lambda one: one[0]))


def _slots_of_tiers(tiers: list[tuple[str, int]], mains: int, subs: int) -> Iterator[dict[str, tuple[int, int]]]:
    """Yield {ability: (main slots, sub slots)} for every way to distribute exactly `mains` main slots and `subs` sub slots over the
    abilities.

    tiers: (ability, n) for each ability; its points must reach the first n of `THRESHOLDS`, and not the next one."""
    if not tiers:
        if mains == subs == 0:
            yield {}
        return
    (ability, number), rest = tiers[0], tiers[1:]
    low, high = THRESHOLDS[number - 1], (*THRESHOLDS, FULL_POINTS + 1)[number]
    for main in range(mains + 1):
        for sub in range(subs + 1):
            if low <= 10 * main + 3 * sub < high:
                for others in _slots_of_tiers(rest, mains - main, subs - sub):
                    yield {ability: (main, sub), **others}


# -- slot tables -----------------------------------------------------------------------------------------------------------------


def _slot_builds(
    path: Path, text: str, weapons: Weapons, tiers: Sequence[int] | None, skipped: SkippedBuilds
) -> Iterator[tuple[int, np.ndarray]]:
    lines = text.split("\n")  # a cell may have other line breaks, such as U+2028
    rows = csv.DictReader(lines, delimiter="\t" if "\t" in lines[0] else ",")
    columns = _columns(path, rows.fieldnames or [])
    builds: dict[tuple[str, str], list[tuple[str, str]]] = {}
    others: set[str] = set()  # tiers that are not read
    for number, row in enumerate(rows, 2):
        if any(row[column] is None for column in columns.values()):
            skipped.read += 1
            skipped.wrong("the row is cut off", f"{path.name}, line {number}")
        elif tiers is None or row[columns["tier"]] in {str(tier) for tier in tiers}:
            builds.setdefault((row[columns["build"]], row[columns["weapon"]]), []).append((row[columns["slot"]], row[columns["ability"]]))
        else:
            others.add(row[columns["tier"]])
    if others and not builds:
        raise ConfigError(f"data.tiers is {list(tiers or [])}, but {path} has the tiers {', '.join(sorted(others))[:60]}; choose some")
    for (name, weapon_number), slots in builds.items():
        skipped.read += 1
        where, weapon = f"{path.name}, build {name}", weapons.get(weapon_number)
        reason = "unknown weapon" if weapon is None else ""
        build = empty_build().astype(np.int64)  # a damaged table may have more than 127 rows of a build
        for slot, code in slots:
            ability = CODES.get(code)
            if ability is None or slot not in SLOT_NUMBERS or (slot != "0" and ability in PIECE_OF):
                reason = reason or f"ability code {code[:12]!r} in slot {slot[:4]!r}"
                continue
            build[main_item(ability) if slot == "0" else sub_item(ability)] += 1
        reason = reason or problem(build) or ""
        if reason:
            skipped.wrong(reason, where)
        elif not is_full(build):
            skipped.unusable("fewer than 12 slots", where)
        elif weapon is not None:
            yield weapon, build.astype(np.int8)


def _columns(path: Path, names: Sequence[str]) -> Mapping[str, str]:
    plain = {name.lower().replace("_", "").strip(): name for name in names}
    found = {column: next((plain[name] for name in accepted if name in plain), "") for column, accepted in COLUMNS.items()}
    missing = [column for column, name in found.items() if not name]
    if missing:
        raise ConfigError(
            f"data.path: {path} has no column for the {missing[0]}; use a token table (ability_tags, weapon_id) or a slot table "
            "(buildid, slotIndex, weaponSplId, tier, ability)"
        )
    return found
