"""Stop training before its planned length: after validations without improvement (`EarlyStopping`), or at fixed limits (`StopConditions`).

`EarlyStopping` has a state, which checkpoints contain; `StopConditions` has none. The inputs of both classes are equal on every process
rank, so all ranks stop at the same step."""

import math
from collections.abc import Mapping
from typing import Any

from linnaeus.config.schema_schedule import EarlyStopConfig
from linnaeus.errors import ConfigError


class EarlyStopping:
    """A condition that is met after `patience` consecutive validations without an improvement of more than `min_delta`.

    Equal values and NaN are not improvements, so training also stops at a constant metric or at a loss that has become NaN."""

    def __init__(self, patience: int = 7, min_delta: float = 0.0, mode: str = "min") -> None:
        if patience < 1:
            raise ConfigError(f"early_stop.patience is {patience}; it must be at least 1")
        if min_delta < 0:
            raise ConfigError(f"early_stop.min_delta is {min_delta}; it must be at least 0")
        if mode not in ("min", "max"):
            raise ConfigError(f"early_stop.mode is {mode!r}; it must be min or max")
        self.patience, self.min_delta, self.mode = patience, min_delta, mode
        self.best_loss = math.inf if mode == "min" else -math.inf  # best value so far of the monitored metric, loss or not
        self.counter = 0

    def check(self, value: float) -> bool:
        """Record `value`, the monitored metric of one validation. Return True if training should stop."""
        gain = self.best_loss - value if self.mode == "min" else value - self.best_loss
        if gain > self.min_delta:  # False for NaN
            self.best_loss, self.counter = float(value), 0
        else:
            self.counter += 1
        return self.counter >= self.patience

    def state_dict(self) -> dict[str, Any]:
        return {"best_loss": self.best_loss, "counter": self.counter}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best_loss, self.counter = float(state["best_loss"]), int(state["counter"])


class StopConditions:
    """Fixed limits of `schedule.early_stop` at which training stops.

    Each method checks some of the limits. It returns the reason to stop as one line of text; None if no limit is reached."""

    def __init__(self, config: EarlyStopConfig, warmup_end: int = 0) -> None:
        self.config, self.warmup_end = config, warmup_end

    def at_step(self, step: int) -> str | None:
        """Check `max_steps` against `step`, the number of updates done. Call this after each update."""
        limit = self.config.max_steps
        if limit is not None and step >= limit:
            return f"step {step} reached schedule.early_stop.max_steps={limit}"
        return None

    def after_log(self, step: int, learning_rate: float, grad_norm: float) -> str | None:
        """Check the limits `max_grad_norm` and, after the warm-up, `min_lr`. Call this when a row of metrics is logged.

        `grad_norm`: norm of the gradient before clipping. If it is infinite or NaN, the update was skipped, and its norm does not count."""
        floor, ceiling = self.config.min_lr, self.config.max_grad_norm
        if floor is not None and step > self.warmup_end and learning_rate < floor:
            return f"learning rate {learning_rate:.3g} fell below schedule.early_stop.min_lr={floor:.3g} at step {step}"
        if ceiling is not None and math.isfinite(grad_norm) and grad_norm > ceiling:
            return f"gradient norm {grad_norm:.3g} exceeded schedule.early_stop.max_grad_norm={ceiling:.3g} at step {step}"
        return None

    def after_validation(self, results: Mapping[str, float]) -> str | None:
        """Check `metric_bound` against the monitored metric in `results`, the metrics of all validation passes of one step.

        Raise `ConfigError` if the validation pass of the metric ran and did not compute the metric."""
        monitor, bound = self.config.monitor, self.config.metric_bound
        if bound is None and self.config.patience is None:
            return None
        value = monitored(results, monitor, "schedule.early_stop.monitor")
        if value is not None and bound is not None and (value <= bound if self.config.mode == "min" else value >= bound):
            return f"{monitor} {value:.6g} reached schedule.early_stop.metric_bound={bound:.6g}"
        return None


def monitored(results: Mapping[str, float], name: str, key: str) -> float | None:
    """Return the metric `name` (such as "val/loss") from the validation results of one step; None if the validation pass of the metric did
    not run.

    Raise `ConfigError`, naming the configuration key `key`, if the pass ran and its results do not contain the metric."""
    found = [other for other in results if other.startswith(name.split("/")[0] + "/")]
    if found and name not in results:
        raise ConfigError(f"{key}={name} is not a metric of this run; choose one of {', '.join(found)}")
    return results.get(name)
