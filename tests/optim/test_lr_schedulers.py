"""Learning-rate schedules: golden values, warm-up, purity, and errors."""

import math

import pytest

from linnaeus.config.schema_optimization import ConstantConfig, CosineConfig, LinearConfig, PlateauConfig, StepConfig, WSDConfig
from linnaeus.errors import ConfigError
from linnaeus.optim import build_scheduler

GOLDEN = {
    "cosine": (
        CosineConfig("cosine", "2steps", 0.1),
        [0.5, 1.0, 1.0, 0.9657458, 0.8681981, 0.7222075, 0.55, 0.3777925, 0.2318019, 0.1342542],
    ),
    "linear": (LinearConfig("linear", "20%", 0.0), [0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]),
    "constant": (ConstantConfig("constant", "4steps"), [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
    "step": (StepConfig("step", "0steps", ["1epochs", "80%"], 0.1), [1.0, 1.0, 1.0, 1.0, 1.0, 0.1, 0.1, 0.1, 0.01, 0.01]),
    "warm-up only": (CosineConfig("cosine", "10steps", 0.0), [(step + 1) / 10 for step in range(10)]),
    "wsd_linear": (WSDConfig("wsd", "1steps", "4steps", "linear", 0.2), [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4]),
    "wsd_sqrt": (WSDConfig("wsd", "2steps", "40%", "sqrt", 0.0), [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.2928932, 0.1339746]),
    "wsd_cosine": (WSDConfig("wsd", "2steps", "2steps", "cosine", 0.0), [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5]),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_curves_are_pure_positive_and_at_most_1(name):
    config, expected = GOLDEN[name]
    schedule = build_scheduler(config, 1.0, total_steps=10, steps_per_epoch=5)
    found = [schedule.scale(step) for step in range(10)]
    assert found == pytest.approx(expected, abs=1e-7) and all(0 < scale <= 1 for scale in found)
    assert [schedule.scale(step) for step in reversed(range(10))] == found[::-1]
    assert schedule.state_dict() == {} and schedule.observe({"val/loss": 1.0}) is False
    schedule.load_state_dict({})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (CosineConfig("cosine", "11steps", 0.0), "lr_scheduler.warmup=11steps"),
        (CosineConfig("cosine", "5min", 0.0), "lr_scheduler.warmup"),
        (WSDConfig("wsd", "5steps", "6steps", "linear", 0.0), "lr_scheduler.decay=6steps"),
        (WSDConfig("wsd", "5steps", "0steps", "linear", 0.0), "lr_scheduler.decay=0steps"),
        (StepConfig("step", "0steps", ["3steps", "3epochs"], 0.1), "3epochs is step 15"),
        (StepConfig("step", "0steps", ["0%"], 0.1), "lr_scheduler.milestones"),
    ],
)
def test_a_schedule_that_does_not_fit_raises(config, message):
    with pytest.raises(ConfigError) as error:
        build_scheduler(config, 1.0, 10, 5)
    assert message in str(error.value) and "\n" not in str(error.value)


def plateau(mode="min"):
    return build_scheduler(PlateauConfig("plateau", "2steps", "val/loss", mode, 0.5, 1, 0.1), 1.0, 100, 10)


def test_plateau_waits_then_reduces():
    schedule = plateau()
    changed = [schedule.observe({"val/loss": value}) for value in (1.0, 0.95, 0.93, math.nan, 0.5, 0.5, 0.5, 0.2)]
    assert changed == [False, False, True, False, False, False, True, False]
    assert schedule.scale(50) == 0.25 and schedule.scale(0) == 0.125


def test_plateau_keeps_its_factor_but_compares_nothing_with_another_metric():
    """A state of an earlier version does not name its metric and is loaded as it is."""
    before = plateau()
    for value in (1.0, 2.0, 2.0, 2.0):
        before.observe({"val/loss": value})
    state = before.state_dict()
    assert (state["reduced"], state["best"], state["waited"]) == (0.5, 1.0, 1)
    unnamed = {name: state[name] for name in ("reduced", "best", "waited")}
    for mode, saved, loaded in (("min", state, (0.5, 1.0, 1)), ("max", state, (0.5, None, 0)), ("max", unnamed, (0.5, 1.0, 1))):
        after = plateau(mode)
        after.load_state_dict(saved)
        assert (after.reduced, after.best, after.waited) == loaded
        assert after.not_compared == (None if loaded[1] else "val/loss (min)")


def test_plateau_modes_and_other_passes():
    rising = plateau("max")
    assert not any(rising.observe({"val/loss": value}) for value in (1.0, 2.0, 3.0, 4.0))
    assert rising.observe({"val_mask_meta/loss": 0.0}) is False, "results of another pass are ignored"
    assert rising.state_dict()["waited"] == 0
    with pytest.raises(ConfigError, match="choose one of val/top1"):
        rising.observe({"val/top1": 0.5})
    assert rising.observe({"val/loss": math.nan}) is False
    with pytest.raises(ConfigError, match="another schedule"):
        rising.load_state_dict({})
