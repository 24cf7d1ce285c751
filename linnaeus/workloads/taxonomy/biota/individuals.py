"""Draw the species, labels and metadata of the individuals of a world, and compute the exact densities of the metadata.

Everything is a pure function of (world, individual number i). Species follow a Kronecker sequence: `frac(start + i * golden ratio)` is
compared with the cumulative frequencies of the species. Any run of consecutive numbers then contains every species in its share to within
about one individual; independent draws would leave rare species out.

Each genus has its own range, season, hours and elevation, which its species share. These distributions are broad and overlap between
genera, so metadata add little where the form separates the species. The species of a cryptic group look the same. They differ in one of
range, season or elevation, by `SEPARATION` standard deviations from one species to the next, and in nothing else.

    latitude, longitude   normal (degrees)          day   wrapped normal on the year (fraction)
    elevation             log-normal (metres)       hour  wrapped normal on the day (hours)
    uncertainty           log-normal (metres), the same for all species

The components SPATIAL (latitude, longitude, uncertainty), TEMPORAL (day, hour) and ELEVATION are missing completely at random.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from linnaeus.randomness import SYNTHETIC, Draw, key, uniforms
from linnaeus.workloads.taxonomy.biota.world import World, build_world
from linnaeus.workloads.taxonomy.observations import Metadata

NULL_SPECIES = 0.06  # share of the individuals without a species label
NULL_GENUS = 0.02  # share without a genus label; these individuals have no species label either
MISSING = {"SPATIAL": 0.10, "TEMPORAL": 0.10, "ELEVATION": 0.15}  # share of the individuals without the component
COMPONENT_OF = {  # in the order of the streams of random numbers
    **{"latitude": "SPATIAL", "longitude": "SPATIAL", "day": "TEMPORAL", "hour": "TEMPORAL", "elevation": "ELEVATION"},
    "uncertainty": "SPATIAL",  # the same for all species, so not in `MetadataDistributions`
}
PERIODS = {"longitude": 360.0, "day": 1.0, "hour": 24.0}
SEPARATION = 2.8  # standard deviations between neighbours of a cryptic group; the Bayes error of two equally common species is 8 %
_GOLDEN = 0.6180339887498949


def species_of(world: World, samples: np.ndarray) -> np.ndarray:
    """Return the number of the true species of each individual, int64 [N]. `samples`: individual numbers, int64 [N]."""
    start = float(uniforms(key(world.number, SYNTHETIC, 6), np.zeros(1, np.int64))[0])
    place = (start + np.asarray(samples, np.float64) * _GOLDEN) % 1.0
    return np.minimum(np.searchsorted(np.cumsum(world.prior), place, side="right"), len(world.prior) - 1).astype(np.int64)


def labels_of(world: World, species: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """Return the labels of N individuals at the R ranks, int64 [N, R]; -1 where an individual was not identified.

    `species`: true species, int64 [N]. `samples`: individual numbers, int64 [N]. If the genus is -1, the species is -1 too."""
    labels = world.lineage[species].copy()
    chance = uniforms(key(world.number, SYNTHETIC, 7), samples)
    labels[chance < NULL_SPECIES, 3] = -1
    labels[chance < NULL_GENUS, 2] = -1
    return labels


class MetadataDistributions(NamedTuple):
    """Mean and standard deviation of the metadata of each species: quantity, such as "latitude" -> float64 [S]. Elevations are natural
    logarithms of metres."""

    centre: dict[str, np.ndarray]
    spread: dict[str, np.ndarray]


def _normal(stream: int, samples: np.ndarray) -> np.ndarray:
    """Return a standard normal number for each sample number, by the method of Box and Muller (1958) from two hashes of the number."""
    radius = np.sqrt(-2.0 * np.log1p(-uniforms(key(stream, 0), samples)))
    return radius * np.cos(2.0 * np.pi * uniforms(key(stream, 1), samples))


@lru_cache(maxsize=4)
def build_distributions(world_number: int) -> MetadataDistributions:
    """Return the metadata distributions of all species of a world. The results for the last four worlds are cached."""
    world = build_world(world_number)
    genera = len(world.tree.names[2])
    rows = np.array([_draw_genus(Draw(world_number, SYNTHETIC, 3, g)) for g in range(genera)])[world.lineage[:, 2]]
    centre, spread, direction = rows[:, 0:5].copy(), rows[:, 5:10], rows[:, 10]
    offset = SEPARATION * (world.cryptic_index - 0.5 * (world.cryptic_size - 1))  # in standard deviations, 0 outside cryptic groups
    kind = np.array(world.cryptic_kind)
    shifts = ((0, "range", np.cos(direction)), (1, "range", np.sin(direction)), (2, "season", 1.0), (4, "elevation", 1.0))
    for column, name, factor in shifts:
        centre[:, column] += np.where(kind == name, offset * factor * spread[:, column], 0.0)
    return MetadataDistributions(dict(zip(COMPONENT_OF, centre.T, strict=False)), dict(zip(COMPONENT_OF, spread.T, strict=False)))


def _draw_genus(draw: Draw) -> list[float]:
    """Return a list of 11 numbers for a genus: 5 means and 5 standard deviations of the metadata, and the direction (radians) in which the
    ranges of its cryptic species are shifted. `draw`: source of random numbers.

    All genera live around the Gulf of Guinea, so that latitude 0.0 and longitude 0.0 occur as valid values."""
    centre = [draw.uniform(0, 8), draw.uniform(0, 12), draw.uniform(0.38, 0.5), draw.uniform(11, 15), draw.uniform(5.5, 5.9)]
    spread = [draw.uniform(4, 6), draw.uniform(6, 9), draw.uniform(0.07, 0.10), draw.uniform(2, 4), draw.uniform(0.45, 0.6)]
    return [*centre, *spread, draw.uniform(0, 2 * np.pi)]


def draw_metadata(world: World, species: np.ndarray, samples: np.ndarray) -> Metadata:
    """Return the metadata of individuals. All values of a missing component are NaN.

    `species`: true species, int64 [N]. `samples`: individual numbers, int64 [N]."""
    centre, spread = build_distributions(world.number)
    noise = {name: _normal(key(world.number, SYNTHETIC, 5, i), samples) for i, name in enumerate(COMPONENT_OF)}
    values = {name: centre[name][species] + spread[name][species] * noise[name] for name in centre}
    values["latitude"] = np.clip(values["latitude"], -90, 90)  # the limits are 10 spreads away
    values["longitude"] = (values["longitude"] + 180.0) % 360.0 - 180.0
    values["elevation"] = np.exp(values["elevation"])
    values["uncertainty"] = np.exp(3.5 + 1.2 * noise["uncertainty"])
    for name in ("day", "hour"):
        wrapped = (values[name] % PERIODS[name]).astype(np.float32)
        values[name] = np.where(wrapped < PERIODS[name], wrapped, 0)  # rounding to float32 can reach the period itself
    rates = enumerate(MISSING.items())
    absent = {name: uniforms(key(world.number, SYNTHETIC, 4, i), samples) < rate for i, (name, rate) in rates}
    return Metadata(**{name: np.where(absent[COMPONENT_OF[name]], np.nan, value).astype(np.float32) for name, value in values.items()})


def _log_normal(x: np.ndarray, centre: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Return the log densities, up to a constant, of the S species' normal distributions at x [N]: float64 [N, S]."""
    return -0.5 * np.square((x[:, None] - centre) / spread) - np.log(spread)


def _log_wrapped(x: np.ndarray, centre: np.ndarray, spread: np.ndarray, period: float) -> np.ndarray:
    """Return the log densities, up to a constant, of the S species' wrapped normal distributions at x [N]: float64 [N, S].

    Each density is the sum of the normal density at x and at x shifted by one and two periods in both directions."""
    turns = [_log_normal(x + k * period, centre, spread) for k in (-2, -1, 0, 1, 2)]
    with np.errstate(invalid="ignore"):  # missing values are NaN
        return np.logaddexp.reduce(turns, axis=0)


def log_densities(world: World, metadata: Metadata) -> dict[str, np.ndarray]:
    """Return, for each component, the log density of the recorded values under each species, up to a constant: component -> float64 [N, S].

    The log density is 0 in the rows of individuals without the component."""
    centre, spread = build_distributions(world.number)
    values = {name: np.asarray(getattr(metadata, name), np.float64) for name in centre}
    values["elevation"] = np.log(values["elevation"])
    total = {component: np.zeros((1, 1)) for component in MISSING}
    for name, x in values.items():
        period = PERIODS.get(name)
        density = _log_wrapped(x, centre[name], spread[name], period) if period else _log_normal(x, centre[name], spread[name])
        total[COMPONENT_OF[name]] = total[COMPONENT_OF[name]] + density
    return {component: np.nan_to_num(density) for component, density in total.items()}
