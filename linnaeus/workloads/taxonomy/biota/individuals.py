"""Species, labels and metadata of the individuals of a world, and the exact densities of the metadata.

Everything is a pure function of (world, individual number i). Species follow a Kronecker sequence: `frac(start + i * golden ratio)`
is cut by the cumulative frequencies. Any run of consecutive numbers then contains every species in its share to within about one
individual; independent draws would leave rare species out.

Each genus has its range, season, hours and elevation, which its species share. All are broad and overlap with those of other genera, so
metadata add little where the form separates the species. The species of a cryptic group differ in one of range, season
or elevation, by `SEPARATION` standard deviations from one to the next, and in nothing else.

    latitude, longitude   normal (degrees)          day   wrapped normal on the year (fraction)
    elevation             log-normal (metres)       hour  wrapped normal on the day (hours)
    uncertainty           log-normal (metres), the same for all species

SPATIAL (latitude, longitude, uncertainty), TEMPORAL (day, hour) and ELEVATION are missing completely at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from linnaeus.randomness import SYNTHETIC, Draw, key, uniforms
from linnaeus.workloads.taxonomy.biota.world import World, build_world
from linnaeus.workloads.taxonomy.observations import Metadata

NULL_SPECIES = 0.06  # share of the individuals without a species label
NULL_GENUS = 0.02  # share without a genus label; these are among the above
MISSING = {"SPATIAL": 0.10, "TEMPORAL": 0.10, "ELEVATION": 0.15}  # share of the individuals without the component
SEPARATION = 2.8  # standard deviations between neighbours of a cryptic group; the Bayes error of two equally common species is 8 %
_GOLDEN = 0.6180339887498949


def species_of(world: World, samples: np.ndarray) -> np.ndarray:
    """Return int64 [N]: the true species of each individual in `samples` (int64 [N])."""
    start = float(uniforms(key(world.number, SYNTHETIC, 6), np.zeros(1, np.int64))[0])
    place = (start + np.asarray(samples, np.float64) * _GOLDEN) % 1.0
    return np.minimum(np.searchsorted(np.cumsum(world.prior), place, side="right"), len(world.prior) - 1).astype(np.int64)


def labels_of(world: World, species: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """Return int64 [N, R]: the labels of individuals of `species`. -1 marks the ranks that were not identified, from one rank downwards."""
    labels = world.lineage[species].copy()
    chance = uniforms(key(world.number, SYNTHETIC, 7), samples)
    labels[chance < NULL_SPECIES, 3] = -1
    labels[chance < NULL_GENUS, 2] = -1
    return labels


@dataclass(frozen=True)
class MetadataDistributions:
    """Centre and spread of the metadata of each species, float64 [S]; elevation in logarithms of metres."""

    latitude: np.ndarray
    longitude: np.ndarray
    day: np.ndarray
    hour: np.ndarray
    elevation: np.ndarray
    latitude_spread: np.ndarray
    longitude_spread: np.ndarray
    day_spread: np.ndarray
    hour_spread: np.ndarray
    elevation_spread: np.ndarray


def _normal(stream: int, samples: np.ndarray) -> np.ndarray:
    """Return standard normal numbers by Box and Muller (1958), from two hashes of the sample number."""
    radius = np.sqrt(-2.0 * np.log1p(-uniforms(key(stream, 0), samples)))
    return radius * np.cos(2.0 * np.pi * uniforms(key(stream, 1), samples))


@lru_cache(maxsize=4)
def build_distributions(world_number: int) -> MetadataDistributions:
    """Return the metadata distributions of the species of a world. The last four are cached."""
    world = build_world(world_number)
    genera = len(world.tree.names[2])
    rows = np.array([_draw_genus(Draw(world_number, SYNTHETIC, 3, g)) for g in range(genera)])[world.lineage[:, 2]]
    centre, spread, direction = rows[:, 0:5].copy(), rows[:, 5:10], rows[:, 10]
    offset = SEPARATION * (world.cryptic_index - 0.5 * (world.cryptic_size - 1))  # in standard deviations, 0 outside cryptic groups
    kind = np.array(world.cryptic_kind)
    centre[:, 0] += np.where(kind == "range", offset * np.cos(direction) * spread[:, 0], 0.0)
    centre[:, 1] += np.where(kind == "range", offset * np.sin(direction) * spread[:, 1], 0.0)
    centre[:, 2] += np.where(kind == "season", offset * spread[:, 2], 0.0)
    centre[:, 4] += np.where(kind == "elevation", offset * spread[:, 4], 0.0)
    return MetadataDistributions(*centre.T, *spread.T)


def _draw_genus(draw: Draw) -> list[float]:
    """Return 5 centres, 5 spreads, and the direction in which cryptic species are spread.

    The region lies around the Gulf of Guinea, so that latitude 0.0 and longitude 0.0 occur as valid values."""
    centre = [draw.uniform(0, 8), draw.uniform(0, 12), draw.uniform(0.38, 0.5), draw.uniform(11, 15), draw.uniform(5.5, 5.9)]
    spread = [draw.uniform(4, 6), draw.uniform(6, 9), draw.uniform(0.07, 0.10), draw.uniform(2, 4), draw.uniform(0.45, 0.6)]
    return [*centre, *spread, draw.uniform(0, 2 * np.pi)]


def missing(world_number: int, samples: np.ndarray) -> dict[str, np.ndarray]:
    """Return component -> bool [N]: True where the component is missing."""
    return {name: uniforms(key(world_number, SYNTHETIC, 4, i), samples) < rate for i, (name, rate) in enumerate(MISSING.items())}


def draw_metadata(world: World, species: np.ndarray, samples: np.ndarray) -> Metadata:
    """Return the metadata of individuals `samples` (int64 [N]) of `species` (int64 [N]), with NaN where a component is missing."""
    p = build_distributions(world.number)
    noise = [_normal(key(world.number, SYNTHETIC, 5, i), samples) for i in range(6)]
    absent = missing(world.number, samples)
    longitude = p.longitude[species] + p.longitude_spread[species] * noise[1]
    values = {
        "latitude": np.clip(p.latitude[species] + p.latitude_spread[species] * noise[0], -90, 90),  # the limits are 10 spreads away
        "longitude": (longitude + 180.0) % 360.0 - 180.0,
        "uncertainty": np.exp(3.5 + 1.2 * noise[5]),
        "day": (p.day[species] + p.day_spread[species] * noise[2]) % 1.0,
        "hour": (p.hour[species] + p.hour_spread[species] * noise[3]) % 24.0,
        "elevation": np.exp(p.elevation[species] + p.elevation_spread[species] * noise[4]),
    }
    component = {"latitude": "SPATIAL", "longitude": "SPATIAL", "uncertainty": "SPATIAL", "day": "TEMPORAL", "hour": "TEMPORAL"}
    for name, value in values.items():
        value[absent[component.get(name, "ELEVATION")]] = np.nan
    return Metadata(**{name: _below_period(name, value.astype(np.float32)) for name, value in values.items()})


def _below_period(name: str, value: np.ndarray) -> np.ndarray:
    """Return `value` with the period itself replaced by 0. Rounding to float32 can reach it (1.0, 24.0); valid values are below it."""
    period = {"day": np.float32(1), "hour": np.float32(24)}.get(name)
    return value if period is None else np.where(value >= period, np.float32(0), value)


def _log_normal(x: np.ndarray, centre: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Return float64 [N, S]: log densities of normal distributions at x [N], up to a constant."""
    return -0.5 * np.square((x[:, None] - centre) / spread) - np.log(spread)


def _log_wrapped(x: np.ndarray, centre: np.ndarray, spread: np.ndarray, period: float) -> np.ndarray:
    """Return float64 [N, S]: log densities of wrapped normal distributions at x [N], up to a constant, summed over five periods."""
    turns = [_log_normal(x + k * period, centre, spread) for k in (-2, -1, 0, 1, 2)]
    return np.logaddexp.reduce(turns, axis=0)


def log_densities(world: World, metadata: Metadata) -> dict[str, np.ndarray]:
    """Return component -> float64 [N, S]: log density of the recorded values under each species, up to a constant; 0 where missing."""
    p = build_distributions(world.number)
    recorded = {name: np.asarray(getattr(metadata, name), np.float64) for name in ("latitude", "day", "elevation")}
    absent = {name: np.isnan(value)[:, None] for name, value in zip(MISSING, recorded.values(), strict=True)}
    filled = {name: np.nan_to_num(np.asarray(getattr(metadata, name), np.float64)) for name in ("latitude", "longitude", "day", "hour")}
    height = np.where(absent["ELEVATION"][:, 0], 1.0, recorded["elevation"])
    densities = {
        "SPATIAL": _log_normal(filled["latitude"], p.latitude, p.latitude_spread)
        + _log_wrapped(filled["longitude"], p.longitude, p.longitude_spread, 360.0),
        "TEMPORAL": _log_wrapped(filled["day"], p.day, p.day_spread, 1.0) + _log_wrapped(filled["hour"], p.hour, p.hour_spread, 24.0),
        "ELEVATION": _log_normal(np.log(height), p.elevation, p.elevation_spread),
    }
    return {name: np.where(absent[name], 0.0, value) for name, value in densities.items()}
