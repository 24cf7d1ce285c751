"""Test metadata components: presence flags and encodings."""

import numpy as np
import pytest

from linnaeus.workloads.taxonomy.observations import Metadata
from linnaeus.workloads.taxonomy.observations.components import COMPONENTS, column_slices, encode


def observe(**given):
    """Return the metadata of one observation; quantities that are not given are NaN."""
    names = ("latitude", "longitude", "uncertainty", "day", "hour", "elevation")
    return Metadata(**{name: np.array([given.get(name, np.nan)], np.float32) for name in names})


def features(component, **given):
    values, present = encode(observe(**given), [component])
    assert present.all()
    return values[0]


def test_shapes_and_columns_follow_the_order_of_components():
    values, present = encode(observe(latitude=1, longitude=2), ["ELEVATION", "SPATIAL"])
    assert values.shape == (1, 13) and values.dtype == np.float32 and present.tolist() == [[False, True]]
    slices = column_slices(["ELEVATION", "SPATIAL"])
    assert slices == (slice(0, 8), slice(8, 13)) and not values[0, slices[0]].any() and values[0, slices[1]].any()


ZERO = {"latitude": 0.0, "longitude": 0.0, "day": 0.0, "elevation": 0.0}
ABSENT = [
    {},
    {"latitude": 3.0, "uncertainty": 5.0, "hour": 5.0},  # a latitude without longitude, an hour without day
    {"latitude": np.inf, "longitude": 0.0},
    {"latitude": 0.0, "longitude": -np.inf},
    {"elevation": np.inf},
]


@pytest.mark.parametrize("given", [ZERO, *ABSENT])
def test_zero_is_present_and_unknown_or_infinite_values_are_absent(given):
    values, present = encode(observe(**given), COMPONENTS)
    assert np.isfinite(values).all() and present.all() == present.any() == (given is ZERO) and (present.any() or not values.any())


def test_places_are_on_the_unit_sphere_and_continuous_at_the_date_line():
    xyz = features("SPATIAL", latitude=52.0, longitude=13.0)[:3]
    assert np.linalg.norm(xyz) == pytest.approx(1)
    east, west = (features("SPATIAL", latitude=10.0, longitude=x) for x in (180.0, -180.0))
    assert np.abs(east - west).max() < 1e-6
    assert features("SPATIAL", latitude=90.0, longitude=77.0)[:3] == pytest.approx([0, 0, 1], abs=1e-6)


def test_uncertainty_has_a_presence_flag():
    unknown, exact, vague = (features("SPATIAL", latitude=1.0, longitude=1.0, uncertainty=u)[3:] for u in (np.nan, 0.0, 1e6))
    assert unknown.tolist() == [0, 0] and exact.tolist() == [0, 1] and vague.tolist() == [1, 1]


def test_days_are_cyclic_and_hours_optional():
    late, early = features("TEMPORAL", day=0.9999, hour=23.99), features("TEMPORAL", day=0.0001, hour=0.01)
    assert np.abs(late - early).max() < 0.01
    spring, autumn = features("TEMPORAL", day=0.25), features("TEMPORAL", day=0.75)
    assert np.abs(spring - autumn).max() > 1.9
    assert spring[4:].tolist() == [0, 0, 0] and features("TEMPORAL", day=0.25, hour=0.0)[4:].tolist() == [0, 1, 1]


def test_elevation_separates_heights_20_m_apart_over_the_range_on_land():
    heights = np.linspace(-400, 8800, 461).astype(np.float32)  # 20 m apart
    table = np.stack([features("ELEVATION", elevation=h) for h in heights])
    apart = np.linalg.norm(table[:, None] - table[None], axis=2) + np.eye(len(table))
    assert apart.min() > 0.1 and np.abs(table).max() < 10
