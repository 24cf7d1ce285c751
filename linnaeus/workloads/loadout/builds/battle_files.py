"""Read the builds of battles from the daily CSV files of the statistics site stat.ink: one file, a folder of files or a zip of files.

A row is a battle with eight players. Player `A1`, who uploaded the battle, is left out, as the site advises. Abilities are a JSON object
with points divided by ten, such as `{"comeback": 1.0, "swim_speed_up": 4.7}`. The header is the first line that has all columns in
`NEEDED`. Other lines that begin with `#` are comments.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from linnaeus.errors import ConfigError
from linnaeus.files import with_distinct_keys
from linnaeus.randomness import RESAMPLE, hashes, key
from linnaeus.workloads.loadout.builds.build_table import Builds
from linnaeus.workloads.loadout.builds.skipped_builds import SkippedBuilds
from linnaeus.workloads.loadout.game.abilities import ITEMS
from linnaeus.workloads.loadout.game.gear import from_points, is_full
from linnaeus.workloads.loadout.game.weapons import Weapons

PLAYERS = tuple(f"{team}{number}" for team in "AB" for number in range(1, 5) if (team, number) != ("A", 1))
NEEDED = ("win", *(f"{player}-{column}" for player in PLAYERS for column in ("weapon", "abilities")))
TEAMS = {"A": "alpha", "B": "bravo"}


def read_battles(path: Path, weapons: Weapons, skipped: SkippedBuilds) -> tuple[Builds, np.ndarray]:
    """Return (the full builds of all battles, bool [N] with True for a build of the winning team).

    Builds that are left out are recorded in `skipped`; a battle without a winner is one wrong build. Raise `ConfigError` for a path
    without CSV files and for a file without the columns `NEEDED`."""
    weapon, items, won = [], [], []
    for place, row in _battles(path, skipped):
        if row["win"] not in TEAMS.values():
            skipped.read += 1
            skipped.wrong(f"the winner is {row['win'][:20]!r}, not alpha or bravo", place)
            continue
        for player in PLAYERS:
            if not row[f"{player}-weapon"]:
                continue  # a battle with fewer players
            found = _build(row, player, weapons, skipped, f"{place}, {player}")
            if found is not None:
                weapon.append(found[0])
                items.append(found[1])
                won.append(row["win"] == TEAMS[player[0]])
    return Builds(np.array(weapon, np.int64), np.array(items, np.int8).reshape(-1, len(ITEMS))), np.array(won, bool)


def _battles(path: Path, skipped: SkippedBuilds) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (file name and row number as text, {column: value}) for each battle in `path`: a CSV file, a folder or a zip.

    Raise `ConfigError` if there is no CSV file, or if a file cannot be read to its end."""
    name, days = path.name, 0
    try:
        for name, lines in _days(path):
            days += 1
            yield from _rows(name, lines, skipped)
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError, UnicodeDecodeError, csv.Error) as error:
        # RuntimeError: a member of the zip is encrypted, or packed in a way that `zipfile` does not know
        found = f"{name} of {path} cannot be read ({str(error)[:100]})"
        raise ConfigError(f"data.path: {found}; use a CSV file in UTF-8, a folder or a zip of them") from None
    if not days:
        raise ConfigError(f"data.path: {path} has no CSV file; download daily files of battles")


def _days(path: Path) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield (file name, lines) of each CSV file in `path`, sorted by name. Hidden files, such as `._day.csv` of macOS, are left out."""
    if path.suffix.lower() == ".zip" and path.is_file():
        with zipfile.ZipFile(path) as archive:
            for name in sorted(name for name in archive.namelist() if _is_day(name)):
                with archive.open(name) as file:
                    yield Path(name).name, io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        return
    for name in sorted(str(file) for file in path.rglob("*") if _is_day(str(file))) if path.is_dir() else [str(path)]:
        with open(name, encoding="utf-8-sig", newline="") as text:
            yield Path(name).name, text


def _is_day(name: str) -> bool:
    return name.lower().endswith(".csv") and not Path(name).name.startswith(".")


def _rows(name: str, lines: Iterable[str], skipped: SkippedBuilds) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (file name and row number as text, {column: value}) for each battle. A row with too few or too many values is recorded in
    `skipped` as one wrong build. Raise `ConfigError` if a column of `NEEDED` is missing.

    name: the file name. lines: the lines of the CSV file."""
    header: list[str] | None = None
    for number, values in enumerate(csv.reader(lines)):
        if header is None:
            columns = [value.lstrip("# ") for value in values]
            if set(NEEDED) <= set(columns):
                header = columns
            elif values and not values[0].startswith("#"):
                missing = next(column for column in NEEDED if column not in columns)
                raise ConfigError(f"data.path: {name} has no column {missing}; use the battle results of stat.ink")
        elif values and not values[0].startswith("#"):
            where = f"{name}, row {number + 1}"
            if len(values) == len(header):
                yield where, dict(zip(header, values))
            else:
                skipped.read += 1
                skipped.wrong(f"a row has {len(values)} values, not {len(header)}", where)


def _build(row: dict[str, str], player: str, weapons: Weapons, skipped: SkippedBuilds, where: str) -> tuple[int, np.ndarray] | None:
    skipped.read += 1
    weapon = weapons.get(row[f"{player}-weapon"])
    if weapon is None:
        skipped.wrong(f"unknown weapon {row[f'{player}-weapon'][:30]!r}", where)
        return None
    try:
        build = from_points(to_points(row[f"{player}-abilities"]))
    except ConfigError as error:
        skipped.wrong(str(error), where)
        return None
    if not is_full(build):
        skipped.unusable("the points do not sum to 57", where)
        return None
    return weapon, build


def to_points(text: str) -> dict[str, int]:
    """Return {ability: points} from `text`, a JSON object of points divided by ten; {} for an empty text. Raise `ConfigError` for another
    form."""
    try:
        found: Any = json.loads(text, object_pairs_hook=with_distinct_keys) if text else {}
        points = {name: round(10 * float(value)) for name, value in found.items()}
        if any(isinstance(value, bool) or abs(10 * float(value) - points[name]) > 1e-6 for name, value in found.items()):
            raise ValueError("not tenths")
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        raise ConfigError(f"abilities are {text[:40]!r}; they must be a JSON object of points divided by ten") from None
    return points


def share_winners(builds: Builds, won: np.ndarray, share: float | None, seed: int) -> Builds:
    """Return as many of `builds` as possible such that a fraction `share` of the returned builds is of winning teams.

    share: None: return all builds. won: bool [N], True for a build of a winning team. The builds to leave out are chosen by a hash of
    `seed` and the row number."""
    if share is None:
        return builds
    winners, losers = (np.flatnonzero(side) for side in (won, ~won))
    limits = [len(winners) / share if share else np.inf, len(losers) / (1 - share) if share < 1 else np.inf]
    total = min(limits)
    kept = [_some(rows, int(part * total + 1e-6), seed) for rows, part in ((winners, share), (losers, 1 - share))]
    return builds.rows(np.sort(np.concatenate(kept)))


def _some(rows: np.ndarray, number: int, seed: int) -> np.ndarray:
    return rows[hashes(key(seed, RESAMPLE), rows).argsort(kind="stable")[:number]]
