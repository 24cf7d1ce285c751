"""Read a build from text or from ability points, check that the build is legal, and arrange it on three pieces of gear."""

import difflib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from linnaeus.errors import ConfigError
from linnaeus.workloads.loadout.game.abilities import (
    ABILITIES,
    FULL_POINTS,
    ITEMS,
    MAIN_ONLY,
    MAIN_POINTS,
    MAIN_SLOTS,
    PIECE_OF,
    PIECES,
    STANDARD,
    SUB_POINTS,
    SUB_SLOTS,
    SUBS_PER_PIECE,
    free_slots,
    main_item,
    sub_item,
)

EMPTY = "-"  # a free slot in text


def empty_build() -> np.ndarray:
    """Return a build without gear, int8 [40]."""
    return np.zeros(len(ITEMS), np.int8)


def find_ability(name: Any) -> str:
    """Return the ability with this name, in lower or upper case, with spaces, hyphens or underscores.

    Raise `ConfigError` for an unknown name; the message has the most similar ability."""
    text = re.sub(r"[\s_-]+", "_", re.sub(r"[()]", "", str(name))).strip("_").lower()
    if text in ABILITIES:
        return text
    near = difflib.get_close_matches(text, ABILITIES, 1)
    hint = f"did you mean {near[0]}?" if near else f"use a name such as {STANDARD[-1]}"
    raise ConfigError(f"unknown ability {str(name)[:40]!r}; {hint}")


def parse_gear(text: str) -> np.ndarray:
    """Return the gear, int8 [40], that a text such as `comeback, swim_speed_up: main sub sub` names. The slot of a main-only ability may be
    left out.

    Raise `ConfigError` for an unknown ability or slot, and for gear that no legal build contains."""
    build = empty_build().astype(np.int64)  # more than 127 slots are counted, then refused
    for part in filter(None, (part.strip() for part in re.split(r"[,;]", text))):
        name, colon, slots = part.partition(":")
        ability = find_ability(name)
        words = slots.split() if colon else ["main"] if ability in PIECE_OF else []
        if not words:
            raise ConfigError(f"{ability} has no slots; write main or sub for each, as in '{ability}: main sub'")
        for word in words:
            build[_item(ability, word.lower())] += 1
    reason = problem(build)
    if reason:
        raise ConfigError(reason)
    return build.astype(np.int8)


def _item(ability: str, word: str) -> int:
    if word not in ("main", "sub"):
        raise ConfigError(f"{ability}: {word[:20]!r} is not a slot; write main or sub")
    if word == "main":
        return main_item(ability)
    if ability in PIECE_OF:
        raise ConfigError(f"{ability} fits only the main slot of the {PIECE_OF[ability]}; write '{ability}: main'")
    return sub_item(ability)


def problem(build: np.ndarray) -> str | None:
    """Return the reason why the gear `build`, int [40], is in no legal build; None for legal gear."""
    if (build < 0).any():
        return f"{ITEMS[int(build.argmin())]} has a negative number of slots"
    mains, subs = free_slots(build)
    if mains < 0:
        return f"the gear has {MAIN_SLOTS - mains} main abilities; a build has {MAIN_SLOTS} main slots"
    if subs < 0:
        return f"the gear has {SUB_SLOTS - subs} sub abilities; a build has {SUB_SLOTS} sub slots"
    for piece, names in MAIN_ONLY.items():
        found = [name for name in names for _ in range(int(build[main_item(name)]))]
        if len(found) > 1:
            return f"{' and '.join(found[:2])} both need the main slot of the {piece}; keep one"
    return None


def is_full(build: np.ndarray) -> bool:
    """Return True for a legal build without free slots."""
    return problem(build) is None and not any(free_slots(build))


def by_ability(points: Mapping[str, Any]) -> dict[str, Any]:
    """Return `points`, whose keys may be any names of abilities, with the names in `ABILITIES` as keys. Raise `ConfigError` for an unknown
    ability and for two names of the same ability."""
    found: dict[str, Any] = {}
    for name, value in points.items():
        ability = find_ability(name)
        if ability in found:
            raise ConfigError(f"points of {ability} are given twice; give them once")
        found[ability] = value
    return found


def from_points(points: Mapping[str, Any]) -> np.ndarray:
    """Return the gear, int8 [40], with exactly these ability points, such as {"swim_speed_up": 13}.

    Points determine the slots: 10 m + 3 s = points has at most one solution with m of 0 to 3 mains and s of 0 to 9 subs. Raise
    `ConfigError` for an unknown ability, two names of the same ability, a number of points that is not whole or has no solution, a
    main-only ability without 10 points, more than 57 points in all, and too many slots."""
    build = empty_build()
    for ability, value in by_ability(points).items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{ability} has {value!r} points; points are whole numbers, 10 for a main and 3 for a sub")
        if ability in PIECE_OF:
            if value != MAIN_POINTS:
                raise ConfigError(f"{ability} has {value} points; a main-only ability has {MAIN_POINTS}")
            build[main_item(ability)] = 1
            continue
        found = slots_of_points(value)
        if found is None:
            raise ConfigError(f"{ability} has {value} points, which no main (10) and sub (3) slots add up to")
        build[main_item(ability)], build[sub_item(ability)] = found
    total = sum(points.values())
    if total > FULL_POINTS:
        raise ConfigError(f"the gear has {total} points; a build has {FULL_POINTS}")
    reason = problem(build)
    if reason:
        raise ConfigError(reason)
    return build.astype(np.int8)


def slots_of_points(points: int) -> tuple[int, int] | None:
    """Return (number of main slots, number of sub slots) that give a standard ability `points` points; None if no slots add up to
    `points`."""
    for mains in range(MAIN_SLOTS + 1):
        subs, rest = divmod(points - MAIN_POINTS * mains, SUB_POINTS)
        if rest == 0 and 0 <= subs <= SUB_SLOTS:
            return mains, subs
    return None


def arrange(build: np.ndarray) -> dict[str, tuple[str, list[str]]]:
    """Place a build on the pieces of gear: {piece: (main ability, three sub abilities)}, with `-` for a free slot.

    A main-only ability is on the piece that it fits. Standard abilities in main slots fill the other pieces in the order of `PIECES`. Equal
    sub abilities are placed next to each other. build: int [40]."""
    only = {piece: name for piece, names in MAIN_ONLY.items() for name in names if build[main_item(name)]}
    mains = [name for name in STANDARD for _ in range(int(build[main_item(name)]))]
    mains.sort(key=lambda name: -int(build[main_item(name)]))
    subs = [name for name in sorted(STANDARD, key=lambda name: -int(build[sub_item(name)])) for _ in range(int(build[sub_item(name)]))]
    found = {}
    for i, piece in enumerate(PIECES):
        main = only.get(piece) or (mains.pop(0) if mains else EMPTY)
        own = subs[SUBS_PER_PIECE * i : SUBS_PER_PIECE * (i + 1)]
        found[piece] = (main, own + [EMPTY] * (SUBS_PER_PIECE - len(own)))
    return found


def to_text(build: np.ndarray) -> str:
    """Return the gear `build`, int [40], as text in the form that `parse_gear` reads; an empty text without gear."""
    parts = []
    for name in ABILITIES:
        mains = int(build[main_item(name)])
        subs = int(build[sub_item(name)]) if name in STANDARD else 0
        words = " ".join(["main"] * mains + ["sub"] * subs)
        if words:
            parts.append(name if name in PIECE_OF else f"{name}: {words}")
    return ", ".join(parts)


def slot_items(builds: np.ndarray) -> np.ndarray:
    """Return the item in each of the 12 slots of full builds, int8 [N, 12], main slots first. builds: int8 [N, 40], counts of `ITEMS`."""
    rows, items = builds.nonzero()
    return np.repeat(items, builds[rows, items]).reshape(len(builds), -1).astype(np.int8)


def count_items(slots: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Return partial builds, int8 [N, 40]: the counts of the items in the slots that are kept.

    slots: int [N, 12], the item in each slot. kept: bool [N, 12], True for a slot that is kept."""
    found = np.zeros((len(slots), len(ITEMS)), np.int8)
    rows, columns = kept.nonzero()
    np.add.at(found, (rows, slots[rows, columns]), 1)
    return found
