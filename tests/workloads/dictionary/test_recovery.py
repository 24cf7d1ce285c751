"""Test the measures of recovery on dictionaries whose measures are known."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
import torch

from linnaeus.workloads.dictionary.planted import PlantedDictionary
from linnaeus.workloads.dictionary.planted_config import SETS
from linnaeus.workloads.dictionary.recovery import assign, matched_mean, measure_recovery

NUMBER = 600


@pytest.fixture(scope="module")
def planted() -> PlantedDictionary:
    return PlantedDictionary(SETS["easy"], seed=1)


def measured(planted: PlantedDictionary, order: list[int], scale: float = 1.0, never: int = 0):
    """Return the measures of the dictionary of the planted features `order`, whose activities are the planted ones times `scale`; the
    last `never` ones are never active."""
    decoder = planted.features[order]
    position = 0

    def encode(x: torch.Tensor) -> torch.Tensor:
        nonlocal position
        found = scale * planted.sample(position, len(x))[1][:, order]
        position += len(x)
        found[:, len(order) - never :] = 0
        return found

    return measure_recovery(encode, lambda f: f @ decoder + planted.bias, decoder, planted, 0, NUMBER, batch=250)


def test_the_planted_features_are_recovered_exactly(planted: PlantedDictionary):
    found = measured(planted, torch.randperm(200, generator=torch.Generator().manual_seed(0)).tolist())
    assert found.mcc == pytest.approx(1, abs=1e-6) and found.uniqueness == 1 and found.dead == 0
    assert found.precision == found.recall == found.f1 == 1 and found.l0 == found.true_l0
    assert found.shrinkage == pytest.approx(1, abs=1e-6) and found.explained_variance == pytest.approx(1, abs=1e-9)


def test_defects_are_seen_by_the_measures_that_are_for_them(planted: PlantedDictionary):
    twice = measured(planted, [*range(100), *range(100)])
    assert twice.uniqueness == 0.5 and twice.f1 == 1 and 0.5 < twice.mcc < 0.8  # the copies are matched with other features
    shrunk = measured(planted, list(range(200)), scale=0.5)
    assert 0.45 < shrunk.shrinkage < 0.6 and shrunk.f1 == 1 and 0.7 < shrunk.explained_variance < 0.8
    dead = measured(planted, list(range(200)), never=20)
    assert dead.dead == 0.1 and dead.recall == dead.f1 == pytest.approx(0.9) and dead.mcc == pytest.approx(1, abs=1e-6)
    assert dead.l0 < 0.95 * dead.true_l0


def test_a_decoder_that_is_not_finite_has_no_mcc():
    assert math.isnan(matched_mean(torch.tensor([[0.5, float("nan")], [0.5, 0.1]]))), "the search for an assignment would not end"


def test_an_assignment_has_the_largest_value():
    generator = np.random.default_rng(0)
    for _ in range(20):
        for value in (generator.normal(size=(4, 6)).astype(np.float32), generator.integers(0, 3, size=(5, 5)).astype(float)):
            rows = np.arange(len(value))
            most = max(value[rows, list(columns)].sum() for columns in permutations(range(value.shape[1]), len(value)))
            found = assign(value)
            assert len(set(found)) == len(value) and value[rows, found].sum() == pytest.approx(most)
