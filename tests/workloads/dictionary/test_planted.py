"""Test planted activations: a function of the position, the frequencies, the trees, the correlations, the directions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from linnaeus.errors import ConfigError
from linnaeus.workloads.dictionary import planted
from linnaeus.workloads.dictionary.planted import PlantedDictionary
from linnaeus.workloads.dictionary.planted_config import SETS

SMALL, NUMBER = SETS["small"], 4000
GOLDEN = [[], [1, 12, 57, 238], [763, 902]]
GOLDEN_SUM = 28.6358


@pytest.fixture(scope="module")
def small() -> PlantedDictionary:
    return PlantedDictionary(SMALL, seed=3)


@pytest.fixture(scope="module")
def uncorrelated() -> PlantedDictionary:
    return PlantedDictionary(replace(SMALL, correlation=0.0), seed=3)


def test_a_sample_is_a_function_of_its_number(small: PlantedDictionary, monkeypatch: pytest.MonkeyPatch):
    x, codes = small.sample(1000, 700)
    assert torch.equal(small.activations(1000, 700), x)
    for first, count in ((1000, 1), (1001, 6), (1399, 2), (1690, 10)):
        part = slice(first - 1000, first - 1000 + count)
        found, part_codes = small.sample(first, count)
        assert torch.equal(found, x[part]) and torch.equal(part_codes, codes[part])
    monkeypatch.setattr(planted, "CHUNK", 1)
    assert torch.equal(small.activations(1000, 20), x[:20])
    assert small.activations(5, 0).shape == (0, small.width)


def test_the_samples_are_those_of_the_first_version(small: PlantedDictionary):
    codes = small.sample(0, 3)[1]
    assert [codes[i].nonzero().flatten().tolist() for i in range(3)] == GOLDEN
    assert codes.sum().item() == pytest.approx(GOLDEN_SUM, rel=1e-5)
    assert torch.equal(PlantedDictionary(SMALL, seed=3).features, small.features)
    assert not torch.equal(PlantedDictionary(SMALL, seed=4).activations(0, 3), small.activations(0, 3))


def test_an_activation_is_the_sum_of_the_active_features(small: PlantedDictionary):
    x, codes = small.sample(0, 300)
    assert torch.allclose(codes @ small.features + small.bias, x, atol=1e-5)
    assert float(small.bias.norm()) == pytest.approx(SMALL.bias, rel=1e-5)


def test_features_are_active_as_often_as_stated(uncorrelated: PlantedDictionary, small: PlantedDictionary):
    active = uncorrelated.sample(0, NUMBER)[1] > 0
    expected = uncorrelated.frequencies
    deviation = (active.double().mean(0) - expected) / (expected * (1 - expected) / NUMBER).sqrt()
    assert float(deviation.square().mean()) == pytest.approx(1, abs=0.2) and float(deviation.abs().max()) < 6
    assert float((small.sample(0, NUMBER)[1] > 0).double().mean(0).sum()) == pytest.approx(float(expected.sum()), rel=0.1)
    roots = expected[: SMALL.roots]
    assert float(roots[0]) == SMALL.frequency and float(expected[-1]) == pytest.approx(SMALL.rarest) and bool((roots.diff() < 0).all())


def test_a_child_needs_its_parent_and_excludes_its_siblings(small: PlantedDictionary):
    active = small.sample(0, NUMBER)[1] > 0
    parents = SMALL.roots * (1 + 4 + 16)
    families = active[:, SMALL.roots : SMALL.roots + parents * 4].view(NUMBER, parents, 4)
    assert int(families.sum()) > NUMBER / 2, "hardly any children"
    assert not bool((families.sum(2) > active[:, :parents]).any())


def test_common_factors_correlate_features():
    often = replace(SETS["easy"], frequency=0.3, rarest=0.2, correlation_rank=25)
    size = []
    for correlation in (0.0, 0.1):
        active = PlantedDictionary(replace(often, correlation=correlation), seed=0).sample(0, NUMBER)[1] > 0
        size.append(float(torch.corrcoef(active.double().T).fill_diagonal_(0).square().mean()))
    assert size[0] == pytest.approx(1 / NUMBER, rel=0.05), "features without common factors are correlated"
    assert size[1] > 2 * size[0]


def test_directions_are_a_tight_frame(small: PlantedDictionary):
    count, width = small.features.shape
    cosines = (small.features @ small.features.T).double()
    assert torch.allclose(cosines.diagonal(), torch.ones(count, dtype=torch.float64), atol=1e-5)
    assert float(cosines.square().sum()) == pytest.approx(count**2 / width, rel=1e-3)  # the smallest possible sum
    few = PlantedDictionary(replace(SETS["easy"], features=20, width=24), seed=0).features
    assert torch.allclose(few @ few.T, torch.eye(20), atol=1e-5)


@pytest.mark.parametrize(("changes", "words"), [({"features": 600}, "have 680 features"), ({"rarest": 0.5}, "data.rarest is 0.5")])
def test_impossible_settings_are_errors(changes: dict[str, float], words: str):
    with pytest.raises(ConfigError, match=words):
        PlantedDictionary(replace(SMALL, **changes), seed=0)
