"""Who is met: the species of individual number i, and how finely it was identified. Pure functions of (world, i).

Species follow a Kronecker sequence, `frac(start + i * golden ratio)` cut by the cumulative frequencies: any run of consecutive
numbers holds every species in its share to within about one individual, where independent draws would leave rare ones out.
"""

from __future__ import annotations

import numpy as np

from linnaeus.randomness import SYNTHETIC, key, uniforms
from linnaeus.workloads.taxonomy.biota.world import World

NULL_SPECIES = 0.06  # share of the individuals identified no further than the genus
NULL_GENUS = 0.02  # share identified no further than the family; among those above
_GOLDEN = 0.6180339887498949


def species_of(world: World, samples: np.ndarray) -> np.ndarray:
    """int64 [N]: the true species of each individual."""
    start = float(uniforms(key(world.number, SYNTHETIC, 6), np.zeros(1, np.int64))[0])
    place = (start + np.asarray(samples, np.float64) * _GOLDEN) % 1.0
    return np.minimum(np.searchsorted(np.cumsum(world.prior), place, side="right"), len(world.prior) - 1).astype(np.int64)


def labels_of(world: World, species: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """int64 [N, R]: what was written on the label, -1 from the rank downwards that was not identified."""
    labels = world.lineage[species].copy()
    chance = uniforms(key(world.number, SYNTHETIC, 7), samples)
    labels[chance < NULL_SPECIES, 3] = -1
    labels[chance < NULL_GENUS, 2] = -1
    return labels
