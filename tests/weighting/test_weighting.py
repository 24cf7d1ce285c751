"""Weightings built from configurations, and invalid configurations."""

import pytest
import torch

from linnaeus.config import compose
from linnaeus.config.schema import VARIANTS
from linnaeus.errors import ConfigError
from linnaeus.weighting import FAMO, DynamicWeightAverage, FixedWeighting, GradNorm, UncertaintyWeighting, build_weighting

CPU = torch.device("cpu")
CLASSES = {
    "fixed": FixedWeighting,
    "gradnorm": GradNorm,
    "uncertainty": UncertaintyWeighting,
    "dwa": DynamicWeightAverage,
    "famo": FAMO,
}


def configured(*overrides):
    return compose(list(overrides)).weighting


def test_every_choice_is_tested_here_or_needs_a_library():
    assert set(VARIANTS["weighting"]) == {*CLASSES, "surgery"}


@pytest.mark.parametrize("name", CLASSES)
def test_build(name):
    found = build_weighting(configured(f"weighting={name}", "weighting.weights={genus: 3.0}"), ("genus", "species"), CPU, torch.float64)
    assert type(found) is CLASSES[name] and found.weights.tolist() == [1.5, 0.5] and found.weights.dtype == torch.float64
    found.load_state_dict(found.state_dict())


@pytest.mark.parametrize(
    ("name", "weights", "tasks", "message"),
    [
        ("fixed", "{kingdom: 1.0}", ("genus", "species"), "weighting.weights.kingdom: kingdom is not a task; choose from genus, species"),
        ("fixed", "{genus: -1.0}", ("genus", "species"), "weighting.weights.genus=-1.0"),
        ("fixed", "{genus: 0.0, species: 0.0}", ("genus", "species"), "all tasks have weight 0"),
        *[(name, "{genus: 0.0}", ("genus", "species"), "weighting.weights.genus=0") for name in CLASSES if name != "fixed"],
        *[(name, "{}", ("species",), "the only task is species") for name in [*CLASSES, "surgery"] if name != "fixed"],
        ("surgery", "{}", ("genus", "species"), "so it needs one micro-batch per window, not 2"),
    ],
)
def test_invalid_configurations_raise(name, weights, tasks, message):
    with pytest.raises(ConfigError) as error:
        build_weighting(configured(f"weighting={name}", f"weighting.weights={weights}"), tasks, CPU, accumulation=2)
    assert message in str(error.value) and "\n" not in str(error.value)
