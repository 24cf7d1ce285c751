"""Add places to the photographs of a set that has none, drawn from ranges of the species (`benchmarks.places`)."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.places import World, coordinates
from benchmarks.recipes.sets import PhotographSet
from linnaeus.files import write_atomic

SIDE = 100.0  # km, of the region


class Places(NamedTuple):
    """share: share of the observations that have a place. shuffled: give each observation the place of another one, so that places tell
    nothing about the species. world: kind of the ranges."""

    share: float = 1.0
    shuffled: bool = False
    world: str = "wide"


def with_places(own: PhotographSet, manifest: Path, places: Places, seed: int, out: Path) -> Path:
    """Write the manifest with latitude and longitude to `out`. Return `out`. Photographs of one observation have the same place."""
    with manifest.open(newline="") as file:
        rows = list(csv.DictReader(file))
    names, species = np.unique([row[own.finest] for row in rows], return_inverse=True)
    _, first, observation = np.unique([row[own.group or "path"] for row in rows], return_index=True, return_inverse=True)
    world = World(len(names), seed, places.world)
    drawn = world.draw_places(species[first])
    if places.shuffled:
        drawn = world.draw.permutation(drawn)
    known = world.draw.random(len(drawn)) < places.share
    latitude, longitude = (values[observation] for values in coordinates(drawn, SIDE))
    for row, north, east, has in zip(rows, latitude, longitude, known[observation], strict=True):
        row |= {"latitude": f"{north:.6f}", "longitude": f"{east:.6f}"} if has else {"latitude": "", "longitude": ""}
    text = io.StringIO()
    table = csv.DictWriter(text, rows[0])
    table.writeheader()
    table.writerows(rows)
    write_atomic(out, text.getvalue())
    return out
