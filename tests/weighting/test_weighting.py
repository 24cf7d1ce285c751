"""Weightings built from configurations, and invalid configurations."""

import pytest
import torch

from linnaeus.config import compose
from linnaeus.config.schema import VARIANTS
from linnaeus.errors import ConfigError
from linnaeus.schedule.events import Every
from linnaeus.weighting import (
    FAMO,
    DynamicWeightAverage,
    FixedWeighting,
    GradNorm,
    UncertaintyWeighting,
    build_weighting,
    weighting_notes,
)

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


@pytest.mark.parametrize(
    "name, epochs, noted", [("dwa", 3, False), ("dwa", 2, True), ("dwa", 1, True), ("famo", 2, False), ("famo", 1, True)]
)
def test_a_weighting_that_changes_no_weight_before_the_last_update_is_noted(name, epochs, noted):
    """With `weighting.every=[1epochs]`. The first weights of dwa come after the second interval, and act from the next update on."""
    last = 10 * epochs
    due = Every.resolve(["1epochs"], "weighting.every", last, 10, last)
    notes = weighting_notes(configured(f"weighting={name}", "weighting.every=[1epochs]"), due)
    assert [f"weighting={name} has no effect" in note for note in notes] == [True] * noted
