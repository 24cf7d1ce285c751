"""Distributions of the metadata, and their densities."""

import numpy as np
import pytest

from linnaeus.workloads.taxonomy.biota.individuals import COMPONENT_OF, MISSING, build_distributions, draw_metadata, log_densities
from linnaeus.workloads.taxonomy.biota.world import build_world
from linnaeus.workloads.taxonomy.observations import Metadata

LIMITS = {"latitude": (-90, 90), "longitude": (-180, 180), "day": (0, 1), "hour": (0, 24), "elevation": (0, 9000), "uncertainty": (0, 1e5)}


def test_values_are_in_range_and_coordinates_have_both_signs(drawn):
    for name, (low, high) in LIMITS.items():
        value = getattr(drawn.metadata, name)
        assert value.dtype == np.float32
        assert np.nanmin(value) >= low and np.nanmax(value) < high
        assert name not in ("latitude", "longitude") or np.nanmin(value) < 0 < np.nanmax(value)


def test_components_are_missing_as_a_whole_at_their_rates_and_independently(drawn):
    first = {"SPATIAL": "latitude", "TEMPORAL": "day", "ELEVATION": "elevation"}
    absent = {component: np.isnan(getattr(drawn.metadata, name)) for component, name in first.items()}
    for name, component in COMPONENT_OF.items():
        np.testing.assert_array_equal(np.isnan(getattr(drawn.metadata, name)), absent[component])
    prior = drawn.world.prior[drawn.species]
    common = prior > np.median(prior)
    for name, rate in MISSING.items():
        assert absent[name].mean() == pytest.approx(rate, abs=4 * np.sqrt(rate / 40000))
        assert absent[name][common].mean() == pytest.approx(absent[name][~common].mean(), abs=0.015)
    for a, b in (("SPATIAL", "TEMPORAL"), ("SPATIAL", "ELEVATION"), ("TEMPORAL", "ELEVATION")):
        assert (absent[a] & absent[b]).mean() == pytest.approx(MISSING[a] * MISSING[b], abs=0.006)


def test_draws_follow_the_stated_density():
    """Mean log density of the draws of a species is minus the entropy, -1/2 - log(spread) per normal quantity.

    A density shifted by half a spread fits worse."""
    world, s = build_world(0), 17
    centre, spread = build_distributions(0)
    m = draw_metadata(world, np.full(8000, s), np.arange(8000))
    for component, density in log_densities(world, m).items():
        expected = sum(-0.5 - np.log(spread[name][s]) for name in spread if COMPONENT_OF[name] == component)
        assert density[density[:, s] != 0, s].mean() == pytest.approx(expected, abs=0.06 if component == "TEMPORAL" else 0.05)
    deviation = (m.latitude[~np.isnan(m.latitude)] - centre["latitude"][s]) / spread["latitude"][s]
    assert np.square(deviation - 0.5).mean() > np.square(deviation).mean() + 0.2


def test_densities_integrate_to_one_on_their_circles():
    world = build_world(0)
    centre, spread = build_distributions(0)
    grid, zeros = np.linspace(0, 1, 400, endpoint=False, dtype=np.float32), np.zeros(400, np.float32)
    for s in range(0, 120, 17):
        hour = np.full(400, centre["hour"][s], np.float32)
        at_peak_hour = Metadata(latitude=zeros, longitude=zeros, uncertainty=zeros, day=grid, hour=hour, elevation=zeros + 1)
        density = np.exp(log_densities(world, at_peak_hour)["TEMPORAL"][:, s]) / np.sqrt(2 * np.pi)
        assert density.mean() == pytest.approx(1 / spread["hour"][s], rel=0.01)


def test_cryptic_species_differ_only_in_their_kind():
    world = build_world(0)
    centre, spread = build_distributions(0)
    differs = {"range": {"latitude", "longitude"}, "season": {"day"}, "elevation": {"elevation"}}
    seen = set()
    for group in (np.flatnonzero(world.form == form) for form in range(world.form.max() + 1)):
        if len(group) > 1:
            kind = world.cryptic_kind[group[0]]
            seen.add(kind)
            assert {name for name in centre if np.ptp(centre[name][group]) > 1e-12} == differs[kind]
            assert max(np.ptp(values[group]) for values in spread.values()) <= 1e-12
    assert seen == set(differs)
