"""Distributions of the metadata, and their densities."""

import numpy as np
import pytest

from linnaeus.workloads.taxonomy.biota.individuals import MISSING, build_distributions, draw_metadata, log_densities, species_of
from linnaeus.workloads.taxonomy.biota.world import build_world

COMPONENT = {"latitude": "SPATIAL", "longitude": "SPATIAL", "uncertainty": "SPATIAL", "day": "TEMPORAL", "hour": "TEMPORAL"}
N = 40000


@pytest.fixture(scope="module")
def drawn():
    world = build_world(0)
    samples = np.arange(N)
    species = species_of(world, samples)
    return world, species, draw_metadata(world, species, samples)


def test_values_are_in_range_and_coordinates_have_both_signs(drawn):
    _, _, m = drawn
    limits = {
        "latitude": (-90, 90),
        "longitude": (-180, 180),
        "day": (0, 1),
        "hour": (0, 24),
        "elevation": (0, 9000),
        "uncertainty": (0, 1e5),
    }
    for name, (low, high) in limits.items():
        value = getattr(m, name)
        assert value.dtype == np.float32
        value = value[~np.isnan(value)]
        assert value.min() >= low
        assert value.max() < high
    for name in ("latitude", "longitude"):
        value = getattr(m, name)
        assert np.nanmin(value) < 0 < np.nanmax(value)


def test_components_are_missing_as_a_whole_at_their_rates_and_independently(drawn):
    world, species, m = drawn
    gone = {name: np.isnan(getattr(m, name)) for name in (*COMPONENT, "elevation")}
    for name, component in COMPONENT.items():
        np.testing.assert_array_equal(gone[name], gone[{"SPATIAL": "latitude", "TEMPORAL": "day"}[component]])
    of = {"SPATIAL": gone["latitude"], "TEMPORAL": gone["day"], "ELEVATION": gone["elevation"]}
    for name, rate in MISSING.items():
        assert of[name].mean() == pytest.approx(rate, abs=4 * np.sqrt(rate / N))
        common = world.prior[species] > np.median(world.prior[species])
        assert of[name][common].mean() == pytest.approx(of[name][~common].mean(), abs=0.015)
    for a, b in (("SPATIAL", "TEMPORAL"), ("SPATIAL", "ELEVATION"), ("TEMPORAL", "ELEVATION")):
        assert (of[a] & of[b]).mean() == pytest.approx(MISSING[a] * MISSING[b], abs=0.006)


def test_draws_follow_the_stated_density():
    """The mean log density of the draws of a species is minus the entropy, known in closed form.

    A density shifted by half a spread fits worse."""
    world = build_world(0)
    p = build_distributions(0)
    s = 17
    m = draw_metadata(world, np.full(8000, s), np.arange(8000))
    log = {name: d[:, s] for name, d in log_densities(world, m).items()}
    # -log(spread) - 1/2 per normal quantity
    expected = -0.5 - np.log(p.elevation_spread[s])
    assert log["ELEVATION"][log["ELEVATION"] != 0].mean() == pytest.approx(expected, abs=0.05)
    expected = -1.0 - np.log(p.latitude_spread[s]) - np.log(p.longitude_spread[s])
    assert log["SPATIAL"][log["SPATIAL"] != 0].mean() == pytest.approx(expected, abs=0.05)
    expected = -1.0 - np.log(p.day_spread[s]) - np.log(p.hour_spread[s])
    assert log["TEMPORAL"][log["TEMPORAL"] != 0].mean() == pytest.approx(expected, abs=0.06)
    known = ~np.isnan(m.latitude)
    shifted = -0.5 * np.square((m.latitude[known] - p.latitude[s] - 0.5 * p.latitude_spread[s]) / p.latitude_spread[s])
    fitting = -0.5 * np.square((m.latitude[known] - p.latitude[s]) / p.latitude_spread[s])
    assert fitting.mean() > shifted.mean() + 0.1


def test_densities_integrate_to_one_on_their_circles():
    world = build_world(0)
    grid = np.linspace(0, 1, 400, endpoint=False).astype(np.float32)
    m = draw_metadata(world, np.zeros(400, np.int64), np.arange(400))
    hour = build_distributions(0).hour.astype(np.float32)
    for s in range(0, 120, 17):
        fixed = type(m)(m.latitude, m.longitude, m.uncertainty, grid, np.full(400, hour[s]), m.elevation)
        day = np.exp(log_densities(world, fixed)["TEMPORAL"][:, s]) / np.sqrt(2 * np.pi)
        at_peak = np.exp(log_densities(world, fixed)["TEMPORAL"][:, s].max())
        assert day.mean() == pytest.approx(1 / build_distributions(0).hour_spread[s], rel=0.01)
        assert at_peak > 0


def test_cryptic_species_differ_only_in_their_kind():
    world = build_world(0)
    p = build_distributions(0)
    differs = {"range": {"latitude", "longitude"}, "season": {"day"}, "elevation": {"elevation"}}
    seen = set()
    for form in range(world.form.max() + 1):
        group = np.flatnonzero(world.form == form)
        if len(group) == 1:
            continue
        kind = world.cryptic_kind[group[0]]
        seen.add(kind)
        moving = {name for name in vars(p) if np.ptp(getattr(p, name)[group]) > 1e-12}
        assert moving == differs[kind]
    assert seen == set(differs)
