"""Where and when the species of a world are met: distributions to draw observations from, and their exact densities.

Kin live together: every genus has a range, a season, hours and an elevation of its own, all broad and close to the others', and
its species share them; so metadata say little about species that looks tell apart. The members of a cryptic group differ from each
other in one of range, season or elevation, by `SEPARATION` standard deviations from one to the next, and in nothing else.

    latitude, longitude   normal (degrees)          day   wrapped normal on the year (fraction)
    elevation             log-normal (metres)       hour  wrapped normal on the day (hours)
    uncertainty           log-normal (metres), the same for all species

SPATIAL (latitude, longitude, uncertainty), TEMPORAL (day, hour) and ELEVATION are each missing by chance alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from linnaeus.randomness import SYNTHETIC, Draw, key, uniforms
from linnaeus.workloads.taxonomy.biota.world import World, build_world
from linnaeus.workloads.taxonomy.observations import Metadata

MISSING = {"SPATIAL": 0.10, "TEMPORAL": 0.10, "ELEVATION": 0.15}
SEPARATION = 2.8  # standard deviations between neighbours of a cryptic group; two equally common ones: 8 % error at best


@dataclass(frozen=True)
class Places:
    """Centre and spread per species, float64 [S]; elevation in logarithms of metres."""

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
    """Standard normal by Box and Muller (1958) from two hashes of the sample number."""
    radius = np.sqrt(-2.0 * np.log1p(-uniforms(key(stream, 0), samples)))
    return radius * np.cos(2.0 * np.pi * uniforms(key(stream, 1), samples))


@lru_cache(maxsize=4)
def build_places(world_number: int) -> Places:
    """The ranges, seasons and elevations of a world."""
    world = build_world(world_number)
    genera = len(world.tree.names[2])
    rows = np.array([_genus_row(Draw(world_number, SYNTHETIC, 3, g)) for g in range(genera)])[world.lineage[:, 2]]
    centre, spread, turn = rows[:, 0:5].copy(), rows[:, 5:10], rows[:, 10]
    step = SEPARATION * (world.cryptic_place - 0.5 * (world.cryptic_size - 1))  # in standard deviations, 0 outside cryptic groups
    of = np.array(world.cryptic_kind)
    centre[:, 0] += np.where(of == "range", step * np.cos(turn) * spread[:, 0], 0.0)
    centre[:, 1] += np.where(of == "range", step * np.sin(turn) * spread[:, 1], 0.0)
    centre[:, 2] += np.where(of == "season", step * spread[:, 2], 0.0)
    centre[:, 4] += np.where(of == "elevation", step * spread[:, 4], 0.0)
    return Places(*centre.T, *spread.T)


def _genus_row(draw: Draw) -> list[float]:
    """Centres, spreads and the direction its cryptic species lie in: a region about the Gulf of Guinea, where 0.0 is a place."""
    centre = [draw.uniform(0, 8), draw.uniform(0, 12), draw.uniform(0.38, 0.5), draw.uniform(11, 15), draw.uniform(5.5, 5.9)]
    spread = [draw.uniform(4, 6), draw.uniform(6, 9), draw.uniform(0.07, 0.10), draw.uniform(2, 4), draw.uniform(0.45, 0.6)]
    return [*centre, *spread, draw.uniform(0, 2 * np.pi)]


def missing(world_number: int, samples: np.ndarray) -> dict[str, np.ndarray]:
    """bool [N] per component: not recorded for that observation."""
    return {name: uniforms(key(world_number, SYNTHETIC, 4, i), samples) < rate for i, (name, rate) in enumerate(MISSING.items())}


def draw_metadata(world: World, species: np.ndarray, samples: np.ndarray) -> Metadata:
    """Metadata of observations `samples` (int64 [N]) of `species` (int64 [N]); NaN where a component is missing."""
    p = build_places(world.number)
    noise = [_normal(key(world.number, SYNTHETIC, 5, i), samples) for i in range(6)]
    gone = missing(world.number, samples)
    longitude = p.longitude[species] + p.longitude_spread[species] * noise[1]
    values = {
        "latitude": np.clip(p.latitude[species] + p.latitude_spread[species] * noise[0], -90, 90),  # 10 spreads away
        "longitude": (longitude + 180.0) % 360.0 - 180.0,
        "uncertainty": np.exp(3.5 + 1.2 * noise[5]),
        "day": (p.day[species] + p.day_spread[species] * noise[2]) % 1.0,
        "hour": (p.hour[species] + p.hour_spread[species] * noise[3]) % 24.0,
        "elevation": np.exp(p.elevation[species] + p.elevation_spread[species] * noise[4]),
    }
    component = {"latitude": "SPATIAL", "longitude": "SPATIAL", "uncertainty": "SPATIAL", "day": "TEMPORAL", "hour": "TEMPORAL"}
    for name, value in values.items():
        value[gone[component.get(name, "ELEVATION")]] = np.nan
    return Metadata(**{name: _below_period(name, value.astype(np.float32)) for name, value in values.items()})


def _below_period(name: str, value: np.ndarray) -> np.ndarray:
    """Rounding to float32 may reach the period itself (1.0, 24.0), which lies outside the contract's half-open range."""
    period = {"day": np.float32(1), "hour": np.float32(24)}.get(name)
    return value if period is None else np.where(value >= period, np.float32(0), value)


def _log_normal(x: np.ndarray, centre: np.ndarray, spread: np.ndarray) -> np.ndarray:
    return -0.5 * np.square((x[:, None] - centre) / spread) - np.log(spread)


def _log_wrapped(x: np.ndarray, centre: np.ndarray, spread: np.ndarray, period: float) -> np.ndarray:
    turns = [_log_normal(x + k * period, centre, spread) for k in (-2, -1, 0, 1, 2)]
    return np.logaddexp.reduce(turns, axis=0)


def log_densities(world: World, metadata: Metadata) -> dict[str, np.ndarray]:
    """float64 [N, S] per component: log density of what was recorded under each species, up to a constant; 0 where missing."""
    p = build_places(world.number)
    recorded = {name: np.asarray(getattr(metadata, name), np.float64) for name in ("latitude", "day", "elevation")}
    gone = {name: np.isnan(value)[:, None] for name, value in zip(MISSING, recorded.values(), strict=True)}
    wide = {name: np.nan_to_num(np.asarray(getattr(metadata, name), np.float64)) for name in ("latitude", "longitude", "day", "hour")}
    height = np.where(gone["ELEVATION"][:, 0], 1.0, recorded["elevation"])
    densities = {
        "SPATIAL": _log_normal(wide["latitude"], p.latitude, p.latitude_spread)
        + _log_wrapped(wide["longitude"], p.longitude, p.longitude_spread, 360.0),
        "TEMPORAL": _log_wrapped(wide["day"], p.day, p.day_spread, 1.0) + _log_wrapped(wide["hour"], p.hour, p.hour_spread, 24.0),
        "ELEVATION": _log_normal(np.log(height), p.elevation, p.elevation_spread),
    }
    return {name: np.where(gone[name], 0.0, value) for name, value in densities.items()}
