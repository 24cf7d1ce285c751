"""Table of full builds, as every data source returns it, and its split into training, validation and test rows.

A hash of the weapon and the build assigns each row to training, validation or test. So identical rows are on the same side of the split, on
every process and in every version of the data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from linnaeus.errors import ConfigError
from linnaeus.randomness import SPLIT, key
from linnaeus.workloads.loadout.game.abilities import ITEMS
from linnaeus.workloads.loadout.game.weapons import Weapons

SIDES = ("train", "validation", "test")
Optimum = Callable[[np.ndarray, np.ndarray], np.ndarray]  # observed [N, 40], weapon [N] -> tails [N, 40, 9]


@dataclass(frozen=True)
class Builds:
    """Table of N full builds. weapon: int64 [N], index of the weapon; items: int8 [N, 40], counts of `ITEMS`."""

    weapon: np.ndarray
    items: np.ndarray

    def __len__(self) -> int:
        return len(self.weapon)

    def rows(self, index: np.ndarray) -> Builds:
        """Return the builds at `index`: row numbers, or a mask, bool [N]."""
        return Builds(self.weapon[index], self.items[index])


@dataclass(frozen=True)
class SplitBuilds:
    """Training, validation and test builds.

    notes: lines for the log. fingerprint: hash of the builds, the split and the weapons. optimum: function that returns the exact
    probabilities of the missing items, such as `Posterior.tails`; None if they are unknown."""

    train: Builds
    validation: Builds
    test: Builds
    weapons: Weapons
    notes: tuple[str, ...]
    fingerprint: str
    optimum: Optimum | None = None


def content_hashes(builds: Builds, seed: int, keys: Sequence[str] = ()) -> np.ndarray:
    """Return a hash of the weapon and the items of each build, salted with `seed`, uint64 [N]. Equal builds have equal hashes.

    keys: key of each weapon, which is hashed in place of its index: the index changes if a list of weapons gets new ones."""
    weapon = builds.weapon[:, None].astype("<i8")
    if keys:
        names = [int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little", signed=True) for name in keys]
        weapon = np.array(names, "<i8")[weapon]
    rows = np.concatenate([weapon.view(np.int8), builds.items], 1)
    salt = key(seed, SPLIT).to_bytes(8, "little")
    digests = (hashlib.blake2b(row.tobytes(), digest_size=8, key=salt).digest() for row in rows)
    return np.frombuffer(b"".join(digests), "<u8") if len(rows) else np.zeros(0, np.uint64)


def first_copies(builds: Builds, most: int | None) -> np.ndarray:
    """Return bool [N], True for the first `most` copies of each build (same weapon and items). most: None: all copies."""
    if most is None:
        return np.ones(len(builds), bool)
    _, index, counts = np.unique(content_hashes(builds, 0), return_inverse=True, return_counts=True)
    order = np.argsort(index, kind="stable")
    starts = np.cumsum(counts) - counts
    copy = np.empty(len(builds), np.int64)  # number of earlier copies
    copy[order] = np.arange(len(builds)) - np.repeat(starts, counts)
    kept: np.ndarray = copy < most
    return kept


def split_builds(
    builds: Builds, weapons: Weapons, fractions: tuple[float, float], seed: int, notes: tuple[str, ...], optimum: Optimum | None = None
) -> SplitBuilds:
    """Divide `builds` into training, validation and test rows. Raise `ConfigError` if training or validation has no row.

    fractions: expected share of validation rows and of test rows. seed: seed of the hash by which rows are divided. notes, optimum: stored
    in the result."""
    hashes = content_hashes(builds, seed, weapons.keys)
    place = (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53
    validation, test = fractions
    side = np.where(place < validation, 1, np.where(place < validation + test, 2, 0))
    parts = [builds.rows(side == number) for number in range(3)]
    for number in (0, 1):
        if not len(parts[number]):
            raise ConfigError(f"data: no build of {len(builds)} is for {SIDES[number]}; use more builds, or another split_seed")
    digest = hashlib.sha256(b"builds-1")
    for array in (builds.weapon.astype("<i4"), builds.items, side.astype(np.int8)):
        digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(repr(weapons.to_dict()).encode())
    assert builds.items.shape[1:] == (len(ITEMS),)
    return SplitBuilds(parts[0], parts[1], parts[2], weapons, notes, digest.hexdigest()[:16], optimum)
