import json
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from linnaeus.config.schema_schedule import EarlyStopConfig
from linnaeus.errors import ConfigError
from linnaeus.schedule.early_stopping import EarlyStopping, StopConditions

NEVER = EarlyStopConfig("val/loss", "min", None, 0.0, None, None, None, None)


def checks_until_stop(stopper: EarlyStopping, values: Callable[[int], float], limit: int = 100) -> int | None:
    return next((i + 1 for i in range(limit) if stopper.check(values(i))), None)


def test_a_plateau_of_equal_losses_stops() -> None:
    assert checks_until_stop(EarlyStopping(), lambda i: 0.5) == 8  # the first value is an improvement, the next seven are not


def test_nan_counts_as_no_improvement() -> None:
    stopper = EarlyStopping(patience=3)
    assert checks_until_stop(stopper, lambda i: math.nan) == 3
    assert stopper.best_loss == math.inf
    stopper = EarlyStopping(patience=3)
    assert checks_until_stop(stopper, lambda i: 1.0 if i == 0 else math.nan) == 4 and stopper.best_loss == 1.0


def test_an_improvement_resets_the_counter() -> None:
    assert checks_until_stop(EarlyStopping(patience=1), lambda i: -float(i)) is None
    assert checks_until_stop(EarlyStopping(patience=1, mode="max"), float) is None
    assert checks_until_stop(EarlyStopping(patience=1, mode="max"), lambda i: -float(i)) == 2


def test_min_delta_must_be_exceeded() -> None:
    assert checks_until_stop(EarlyStopping(patience=1, min_delta=0.25), lambda i: 8 - 0.25 * i) == 2
    assert checks_until_stop(EarlyStopping(patience=2, min_delta=0.25), lambda i: 8 - 0.25 * i) is None  # 0.5 better than the best value
    assert checks_until_stop(EarlyStopping(patience=1, min_delta=0.25), lambda i: 8 - 0.5 * i) is None


def test_state_dict_round_trip() -> None:
    stopper = EarlyStopping(patience=3)
    for value in (2.0, 1.0, 1.5):
        stopper.check(value)
    resumed = EarlyStopping(patience=3)
    resumed.load_state_dict(json.loads(json.dumps(stopper.state_dict())))
    assert (resumed.best_loss, resumed.counter) == (1.0, 1)
    assert [resumed.check(1.0), resumed.check(1.0)] == [False, True] == [stopper.check(1.0), stopper.check(1.0)]


@pytest.mark.parametrize("arguments", [{"patience": 0}, {"min_delta": -1.0}, {"mode": "least"}])
def test_invalid_arguments_raise(arguments: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        EarlyStopping(**arguments)


def test_nothing_stops_without_limits() -> None:
    conditions = StopConditions(NEVER)
    assert conditions.at_step(10**9) is None
    assert conditions.after_log(5, 0.0, math.inf) is None
    assert conditions.after_validation({"val/loss": -1e9}) is None


def test_max_steps() -> None:
    conditions = StopConditions(replace(NEVER, max_steps=7))
    assert conditions.at_step(6) is None and "max_steps=7" in conditions.at_step(7)


def test_min_lr_applies_after_warm_up_only() -> None:
    conditions = StopConditions(replace(NEVER, min_lr=1e-3), warmup_end=10)
    assert conditions.after_log(10, 1e-4, 1.0) is None
    assert conditions.after_log(11, 1e-3, 1.0) is None
    assert "min_lr" in conditions.after_log(11, 9e-4, 1.0)


def test_max_grad_norm() -> None:
    conditions = StopConditions(replace(NEVER, max_grad_norm=2.0))
    assert conditions.after_log(1, 1.0, 2.0) is None and conditions.after_log(1, 1.0, math.nan) is None
    assert "gradient norm 2.5 exceeded" in conditions.after_log(1, 1.0, 2.5)


def test_metric_bound_in_both_directions() -> None:
    smaller = StopConditions(replace(NEVER, metric_bound=0.5))
    larger = StopConditions(replace(NEVER, metric_bound=0.9, mode="max", monitor="val/species/top1"))
    assert smaller.after_validation({"val/loss": 0.51}) is None and "metric_bound" in smaller.after_validation({"val/loss": 0.5})
    assert larger.after_validation({"val/species/top1": 0.89}) is None and larger.after_validation({"val/species/top1": 0.9})
    assert smaller.after_validation({"val/loss": math.nan}) is None


def test_an_unknown_monitor_raises_but_a_pass_that_is_not_due_does_not() -> None:
    conditions = StopConditions(replace(NEVER, metric_bound=0.5, monitor="val/los"))
    assert conditions.after_validation({"val_mask_meta/loss": 1.0}) is None
    with pytest.raises(ConfigError, match=r"monitor=val/los is not a metric of this run; choose one of val/loss"):
        conditions.after_validation({"val/loss": 1.0})
