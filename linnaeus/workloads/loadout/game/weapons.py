"""Vocabulary of weapons. A reskin, which differs from another weapon only in appearance, is that other weapon for the model."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from linnaeus.errors import ConfigError
from linnaeus.workloads.loadout.game.weapon_list import WEAPON_LIST


@dataclass(frozen=True)
class Weapon:
    """One weapon of the game. `reskin_of`: key of the weapon from which it differs only in appearance; its own `key` if there is none."""

    key: str
    number: str
    name: str
    reskin_of: str


@dataclass(frozen=True)
class Weapons:
    """Vocabulary of W weapons. rows: all weapons, reskins included. keys: the keys of the W weapons that are not reskins, sorted.

    The index of a weapon is the position of its key in `keys`; a reskin has the index of the weapon `reskin_of`."""

    rows: Sequence[Weapon]
    keys: tuple[str, ...] = field(init=False)
    _exact: dict[str, int] = field(init=False, repr=False)  # by key and by number
    _named: dict[str, list[int]] = field(init=False, repr=False)  # by the `slug` of keys, numbers and names; several may have a name

    def __post_init__(self) -> None:
        keys = tuple(sorted({row.reskin_of for row in self.rows}))
        place = {key: i for i, key in enumerate(keys)}
        named: dict[str, list[int]] = {}
        for row in self.rows:
            for text in filter(None, {slug(row.name), slug(row.number), slug(row.key)}):
                named[text] = sorted({*named.get(text, []), place[row.reskin_of]})
        object.__setattr__(self, "keys", keys)
        object.__setattr__(self, "_exact", {text: place[row.reskin_of] for row in self.rows for text in (row.number, row.key) if text})
        object.__setattr__(self, "_named", named)

    def __len__(self) -> int:
        return len(self.keys)

    def get(self, name: str) -> int | None:
        """Return the index of the weapon with this exact key, number or `slug` of its name; None if there is not exactly one."""
        found = [self._exact[name]] if name in self._exact else self._named.get(name, [])
        return found[0] if len(found) == 1 else None

    def find(self, name: str) -> int:
        """Return the index of the weapon with this key, number or name, in lower or upper case.

        Raise `ConfigError` for a name of several weapons, and for an unknown weapon; the message has the most similar name."""
        found = [self._exact[name]] if name in self._exact else self._named.get(slug(name), [])
        if len(found) == 1:
            return found[0]
        if found:
            raise ConfigError(f"weapon {name[:40]!r} is the name of {' and '.join(self.keys[i] for i in found)}; use one of these keys")
        near = difflib.get_close_matches(slug(name), self._named, 1)
        raise ConfigError(f"unknown weapon {name[:40]!r}; {f'did you mean {near[0]}?' if near else 'use its name, such as splattershot'}")

    def name(self, index: int) -> str:
        """Return the name of the weapon with this index, as the game shows it."""
        return next(row.name for row in self.rows if row.key == self.keys[index])

    def to_dict(self) -> list[list[str]]:
        """Return [[key, number, name, key of the reference weapon], ...], from which `weapons_from` makes an equal vocabulary."""
        return [[row.key, row.number, row.name, row.reskin_of] for row in self.rows]


def slug(name: str) -> str:
    """Return `name` in lower case, with underscores instead of other characters: `N-ZAP '85` becomes n_zap_85."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def weapons_from(rows: Iterable[Sequence[str]]) -> Weapons:
    """Return the vocabulary from `rows`, the result of `Weapons.to_dict`. Raise `ValueError` for rows of another form, for a key or number
    that two weapons have, and for a reskin of a reskin."""
    plain = [[str(value) for value in row] for row in rows]
    found = [Weapon(*row) for row in plain if len(row) == 4]
    own = {row.key for row in found if row.reskin_of == row.key}
    if len(found) < len(plain) or any(row.reskin_of not in own for row in found) or not found:
        raise ValueError("not a list of weapons with key, number, name and reference")
    names = [name for row in found for name in {row.key, row.number} if name]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"two weapons have the key or number {twice[0][:20]}")
    return Weapons(found)


def builtin_weapons() -> Weapons:
    """Return the vocabulary of the weapons that the program lists: 143 weapons, of which 130 are not reskins."""
    rows = (line.split("|") for line in WEAPON_LIST.splitlines())
    return weapons_from((key, number, name, reskin or key) for key, number, name, reskin in rows)


def read_weapons(path: str) -> Weapons:
    """Return the vocabulary in a file `weapon.json` of the statistics site stat.ink. Raise `ConfigError` if the file cannot be read as
    one."""
    try:
        return weapons_from(_row(entry) for entry in json.loads(Path(path).read_text(encoding="utf-8-sig")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        line = f"an entry has no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())[:100]
        raise ConfigError(f"data.weapons: {path} cannot be read ({line}); use the list of weapons of stat.ink, a JSON file") from None


def _row(entry: dict[str, Any]) -> tuple[str, str, str, str]:
    number = next((str(name) for name in entry.get("aliases", []) if str(name).isdigit()), "")
    return str(entry["key"]), number, str(entry["name"]["en_US"]), str(entry.get("reskin_of") or entry["key"])
