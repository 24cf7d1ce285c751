import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from linnaeus.config.schema_schedule import EarlyStopConfig
from linnaeus.errors import ConfigError
from linnaeus.schedule.early_stopping import EarlyStopping, StopConditions

NEVER = EarlyStopConfig("val/loss", "min", None, 0.0, None, None, None, None)


@pytest.mark.parametrize(
    "arguments, value, checks",
    [
        ({}, lambda i: 0.5, 8),  # equal losses: the first value is an improvement, the next seven are not
        ({"patience": 3}, lambda i: math.nan, 3),
        ({"patience": 3}, lambda i: 1.0 if i == 0 else math.nan, 4),
        ({"patience": 1}, lambda i: -float(i), None),  # an improvement resets the counter
        ({"patience": 1, "mode": "max"}, float, None),
        ({"patience": 1, "mode": "max"}, lambda i: -float(i), 2),
        ({"patience": 1, "min_delta": 0.25}, lambda i: 8 - 0.25 * i, 2),  # min_delta must be exceeded
        ({"patience": 2, "min_delta": 0.25}, lambda i: 8 - 0.25 * i, None),  # 0.5 better than the best value
        ({"patience": 1, "min_delta": 0.25}, lambda i: 8 - 0.5 * i, None),
    ],
)
def test_number_of_checks_until_it_stops(arguments: dict, value: Callable[[int], float], checks: int | None) -> None:
    stopper = EarlyStopping(**arguments)
    assert next((i + 1 for i in range(100) if stopper.check(value(i))), None) == checks
    values = [value(i) for i in range(checks or 100) if not math.isnan(value(i))]
    assert "min_delta" in arguments or stopper.best_loss == (max if stopper.mode == "max" else min)(values, default=math.inf)


@pytest.mark.parametrize("arguments", [{"patience": 0}, {"min_delta": -1.0}, {"mode": "least"}])
def test_invalid_arguments_raise(arguments: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        EarlyStopping(**arguments)


@pytest.mark.parametrize(
    "limits, method, stops, continues",
    [
        ({"max_steps": 7}, "at_step", [(7,)], [(6,)]),
        ({"min_lr": 1e-3}, "after_log", [(11, 9e-4, 1.0)], [(10, 1e-4, 1.0), (11, 1e-3, 1.0)]),  # after warm-up only
        ({"max_grad_norm": 2.0}, "after_log", [(1, 1.0, 2.5)], [(1, 1.0, 2.0), (1, 1.0, math.nan), (1, 1.0, math.inf)]),
        ({"metric_bound": 0.5}, "after_validation", [({"val/loss": 0.5},)], [({"val/loss": 0.51},), ({"val/loss": math.nan},)]),
        ({"metric_bound": 0.9, "mode": "max"}, "after_validation", [({"val/loss": 0.9},)], [({"val/loss": 0.89},)]),
        ({}, "at_step", [], [(10**9,)]),
        ({}, "after_log", [], [(50, 0.0, math.inf)]),
        ({}, "after_validation", [], [({"val/loss": -1e9},)]),
    ],
)
def test_limits(limits: dict, method: str, stops: list, continues: list) -> None:
    check = getattr(StopConditions(replace(NEVER, **limits), warmup_end=10), method)
    assert all("schedule.early_stop" in check(*arguments) and next(iter(limits)) in check(*arguments) for arguments in stops)
    assert [check(*arguments) for arguments in continues] == [None] * len(continues)


def test_an_unknown_monitor_raises_but_a_pass_that_is_not_due_does_not() -> None:
    conditions = StopConditions(replace(NEVER, metric_bound=0.5, monitor="val/los"))
    assert conditions.after_validation({"val_mask_meta/loss": 1.0}) is None
    with pytest.raises(ConfigError, match=r"monitor=val/los is not a metric of this run; choose one of val/loss"):
        conditions.after_validation({"val/loss": 1.0})
