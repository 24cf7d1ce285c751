"""Define the sets of photographs, each a manifest with train, val and test samples, and the settings with which linnaeus reads them."""

from __future__ import annotations

import csv
import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

from linnaeus.files import write_atomic

TEST_SHARE, VALIDATION_SHARE = 0.25, 0.15  # of a set without a split column


@dataclass(frozen=True)
class PhotographSet:
    """A folder with `manifest.csv`. `ranks`: its label columns, coarse to fine. `group`: column whose equal values stay in one split.

    `cpu_seconds`: CPU time of a training on it."""

    name: str
    ranks: tuple[str, ...]
    group: str | None = None
    cpu_seconds: float = 240.0

    @property
    def finest(self) -> str:
        """Return the finest rank of the labels."""
        return self.ranks[-1]

    def settings(self, manifest: Path) -> list[str]:
        """Return the settings with which linnaeus reads the manifest."""
        columns = ",".join(f"{rank}:{rank}" for rank in self.ranks)
        group = [f"data.group_column={self.group}"] if self.group else []
        return ["data=manifest", f"data.path={manifest}", f"data.rank_columns={{{columns}}}", "data.split_column=split", *group]


PLANT_RANKS = ("class", "order", "family", "genus", "species")
SETS = {
    own.name: own
    for own in (
        PhotographSet("plants480", PLANT_RANKS, "observation", 60.0),
        PhotographSet("plants3900", PLANT_RANKS, "observation"),
        PhotographSet("grocery5400", ("group", "coarse", "fine")),
    )
}


def write_manifest(own: PhotographSet, source: Path, out: Path, seed: int, unlabelled: float = 0.0, unseen: float = 0.0) -> Path:
    """Write the manifest of the set in the folder `source`, with absolute paths and a split, to `out`/manifest-<seed>.csv. Return its path.

    A split column of the set is used for every seed. A set without one is split by the hash of (seed, group). `unlabelled`: share of the
    training samples whose label at the finest rank is removed, chosen by the hash of (seed, path); each finest class keeps at least one
    label. `unseen`: share of the finest classes that are left out (`without_classes`)."""
    with (source / "manifest.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row.setdefault("split", _split(seed, row[own.group or "path"]))
    rows = without_classes(own, rows, seed, unseen) if unseen else rows
    train = sorted((row for row in rows if row["split"] == "train"), key=lambda row: _hash(seed, "label/" + row["path"]), reverse=True)
    kept: set[str] = set()
    for row in train:
        if row[own.finest] in kept and _hash(seed, "label/" + row["path"]) < unlabelled:
            row[own.finest] = ""
        kept.add(row[own.finest])
    for row in rows:
        row["path"] = str((source / row["path"]).resolve())
    text = io.StringIO()
    table = csv.DictWriter(text, rows[0])
    table.writeheader()
    table.writerows(rows)
    out.mkdir(parents=True, exist_ok=True)
    write_atomic(out / f"manifest-{seed}.csv", text.getvalue())  # another trial may read the file at this moment
    return out / f"manifest-{seed}.csv"


def without_classes(own: PhotographSet, rows: list[dict[str, str]], seed: int, share: float) -> list[dict[str, str]]:
    """Return the rows if the share `share` of the finest classes were unknown: their training and validation rows are dropped, and the test
    rows are theirs alone, without the label at the finest rank.

    The classes are chosen by the hash of (seed, class), among those whose parent has another class; each parent keeps one."""
    finest, parent = own.ranks[-1], own.ranks[-2]
    siblings: dict[str, set[str]] = {}
    for row in rows:
        if row[finest] and row[parent] and row["split"] == "train":
            siblings.setdefault(row[parent], set()).add(row[finest])
    ordered = [sorted(classes, key=lambda name: _hash(seed, f"class/{name}")) for classes in siblings.values()]
    out = {name for classes in ordered for name in classes[:-1] if _hash(seed, f"class/{name}") < share}
    kept = [row for row in rows if (row[finest] in out) == (row["split"] == "test")]
    return [row | {finest: ""} if row["split"] == "test" else row for row in kept]


def _split(seed: int, key: str) -> str:
    place = _hash(seed, key)
    return "test" if place < TEST_SHARE else "val" if place < TEST_SHARE + VALIDATION_SHARE else "train"


def _hash(seed: int, key: str) -> float:
    """Return a number in [0, 1) that depends on the seed and the key only."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{key}".encode(), digest_size=8).digest()) / 2**64
