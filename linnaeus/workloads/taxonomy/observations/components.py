"""Encode the metadata components (place, time and elevation of a photograph) as network inputs with presence flags.

A component is present if its values are known; 0.0 is a valid value. An absent component has features 0 and `present` False; the models use
a learned token in place of the component.

    SPATIAL    x, y, z on the unit sphere, log of the coordinate uncertainty, a flag that it is known           (5 columns)
    TEMPORAL   sine and cosine of the day of the year (two harmonics) and of the hour, a flag that it is known  (7 columns)
    ELEVATION  kilometres, their signed logarithm, sine and cosine at three scales                              (8 columns)"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.observations.source import Metadata

ELEVATION_PERIODS = (500.0, 2000.0, 8000.0)  # metres; the longest exceeds the range on land, so its phase determines the elevation
WIDTHS = {"SPATIAL": 5, "TEMPORAL": 7, "ELEVATION": 2 + 2 * len(ELEVATION_PERIODS)}
COMPONENTS = tuple(WIDTHS)
PARTS = {"uncertainty": ("SPATIAL", 3, 5), "hour": ("TEMPORAL", 4, 7)}  # may be unknown in a known component -> its columns there
BLOCK = 1 << 13  # observations that are encoded at once, so that they fit into the cache of a core


def column_slices(components: Sequence[str]) -> tuple[slice, ...]:
    """Return the columns of each component in the feature matrix. Raise `ConfigError` for an unknown or repeated component."""
    for name in components:
        if name not in WIDTHS:
            raise ConfigError(f"data.components: {name!r} is not a metadata component; choose from {', '.join(COMPONENTS)}")
    if len(set(components)) != len(components):
        raise ConfigError(f"data.components: {list(components)} names a component twice")
    ends = np.cumsum([0, *(WIDTHS[name] for name in components)]).tolist()
    return tuple(slice(a, b) for a, b in pairwise(ends))


def part_columns(components: Sequence[str], names: Sequence[str]) -> list[slice]:
    """Return the columns, in the feature matrix of `components`, of the quantities of `PARTS` that are in `names`."""
    first = {name: own.start for name, own in zip(components, column_slices(components), strict=True)}
    parts = [PARTS[name] for name in names if name in PARTS and PARTS[name][0] in first]
    return [slice(first[component] + start, first[component] + stop) for component, start, stop in parts]


def encode(metadata: Metadata, components: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the features of N observations, float32 [N, F], always finite, and the presence of M components, bool [N, M].

    Features of an absent component are 0."""
    slices = column_slices(components)
    present = presence(metadata, components)
    features = np.zeros((len(present), slices[-1].stop if slices else 0), np.float32)
    for first in range(0, len(present), BLOCK):
        block = slice(first, first + BLOCK)
        for name, columns, known in zip(components, slices, present[block].T, strict=True):
            features[block, columns][known] = np.stack(_ENCODERS[name](metadata.take(block), known), axis=1)
    return features, present


def presence(metadata: Metadata, components: Sequence[str]) -> np.ndarray:
    """Return bool [N, M] for N observations and M components: True where the component is known."""
    present = np.zeros((len(metadata.latitude), len(components)), bool)
    for m, name in enumerate(components):
        present[:, m] = _PRESENCE[name](metadata)
    return present


def _select(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.asarray(values, np.float64)[rows]


def _cycle(turns: np.ndarray) -> list[np.ndarray]:
    """Return sine and cosine of 2 pi x `turns`."""
    return [np.sin(2 * np.pi * turns), np.cos(2 * np.pi * turns)]


def _spatial(metadata: Metadata, rows: np.ndarray) -> list[np.ndarray]:
    lat, lon = np.deg2rad(_select(metadata.latitude, rows)), np.deg2rad(_select(metadata.longitude, rows))
    metres = _select(metadata.uncertainty, rows)
    stated = np.isfinite(metres)
    logarithm = np.log10(np.where(stated, np.maximum(metres, 1.0), 1.0)) / 6.0  # 1 m -> 0, 1000 km -> 1
    radius = np.cos(lat)
    return [radius * np.cos(lon), radius * np.sin(lon), np.sin(lat), logarithm, stated]


def _temporal(metadata: Metadata, rows: np.ndarray) -> list[np.ndarray]:
    day, hour = _select(metadata.day, rows), _select(metadata.hour, rows)
    stated = np.isfinite(hour)
    clock = [np.where(stated, wave, 0.0) for wave in _cycle(np.where(stated, hour, 0.0) / 24.0)]
    return [*_cycle(day), *_cycle(2 * day), *clock, stated]


def _elevation(metadata: Metadata, rows: np.ndarray) -> list[np.ndarray]:
    metres = _select(metadata.elevation, rows)
    waves = [wave for period in ELEVATION_PERIODS for wave in _cycle(metres / period)]
    return [metres / 1000.0, np.sign(metres) * np.log1p(np.abs(metres) / 10.0) / 5.0, *waves]


_ENCODERS = {"SPATIAL": _spatial, "TEMPORAL": _temporal, "ELEVATION": _elevation}
_PRESENCE = {
    "SPATIAL": lambda m: np.isfinite(m.latitude) & np.isfinite(m.longitude),
    "TEMPORAL": lambda m: np.isfinite(m.day),
    "ELEVATION": lambda m: np.isfinite(m.elevation),
}
