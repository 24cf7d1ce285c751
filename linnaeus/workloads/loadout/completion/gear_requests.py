"""Requests for completions: a weapon, given gear and minimums of ability points, read from text or from a line of a JSON file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from linnaeus.errors import ConfigError
from linnaeus.files import with_distinct_keys
from linnaeus.workloads.loadout.completion.allocation import allocate
from linnaeus.workloads.loadout.game.abilities import FULL_POINTS
from linnaeus.workloads.loadout.game.gear import by_ability, empty_build, parse_gear
from linnaeus.workloads.loadout.game.weapons import Weapons

KEYS = ("weapon", "have", "points")


class Request(NamedTuple):
    """Request to complete a build. weapon: index of the weapon; -1 if the weapon is unknown.

    given: int8 [40], the given gear, with slots added that reach the minimums of ability points; None if the request cannot be met. reason:
    the reason why it cannot be met; empty otherwise."""

    weapon: int
    given: np.ndarray | None
    reason: str = ""


def make_request(weapons: Weapons, weapon: str, have: str = "", points: Mapping[str, Any] | None = None) -> Request:
    """Return the request for a weapon, given gear and minimums of ability points.

    weapon: name, key or number. have: the given gear, as text for `parse_gear`. points: ability -> least ability points. Never raise
    `ConfigError`: if a value is wrong or no legal build meets the request, `given` of the result is None and `reason` says why."""
    try:
        number = weapons.find(weapon)
    except ConfigError as error:
        return Request(-1, None, str(error))
    try:
        return Request(number, _given(have, points or {}))
    except ConfigError as error:
        return Request(number, None, str(error))


def _given(have: str, points: Mapping[str, Any]) -> np.ndarray:
    gear = parse_gear(have) if have else empty_build()
    minimums = by_ability(points)
    for ability, value in minimums.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= FULL_POINTS:
            raise ConfigError(f"points of {ability} are {str(value)[:20]!r}; they must be a whole number from 0 to {FULL_POINTS}")
    found = allocate(minimums, gear)
    if found is None:
        wanted = ", ".join(f"{ability} {value}" for ability, value in minimums.items())
        raise ConfigError(f"no legal build with the given gear reaches {wanted[:100]} points; lower one, or give less gear")
    return found


def parse_points(text: str) -> dict[str, int]:
    """Return {ability: points} of a text such as `swim_speed_up: 29, special_saver: 6`. Names of abilities are not checked.

    Raise `ConfigError` for another form, and for a name that occurs twice."""
    found: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = (word.strip() for word in part.partition(":"))
        if not re.fullmatch("[0-9]{1,9}", number):
            raise ConfigError(f"points: {part[:40]!r} is not an ability and a whole number, as in 'swim_speed_up: 29'")
        if name in found:
            raise ConfigError(f"points of {name[:40]} are given twice; give them once")
        found[name] = int(number)
    return found


def read_requests(path: Path, weapons: Weapons) -> list[Request]:
    """Return the requests of a file with a JSON object on each line: `weapon`, and optionally `have` (gear as text) and `points` (ability
    -> points).

    Raise `ConfigError` for a file that cannot be read, has no request or has another form. A request that cannot be met is returned with
    its `reason`."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # JSON may have other line breaks, such as U+2028
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--requests: {path} cannot be read ({error}); use a text file with a JSON object on each line") from None
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line, object_pairs_hook=with_distinct_keys)
        except (ValueError, RecursionError):
            entry = None
        if not _is_request(entry):
            raise ConfigError(
                f"--requests: line {number} of {path} is not a request; write each key once, as in "
                '{"weapon": "splattershot", "have": "swim_speed_up: main"}'
            )
        found.append(make_request(weapons, entry["weapon"], entry.get("have", ""), entry.get("points")))
    if not found:
        raise ConfigError(f"--requests: {path} has no request; write a JSON object on each line")
    return found


def _is_request(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("weapon"), str)
        and isinstance(entry.get("have", ""), str)
        and isinstance(entry.get("points", {}), dict)
        and not set(entry) - set(KEYS)
    )
