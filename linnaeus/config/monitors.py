"""Find the direction of a monitored metric: `min` if smaller values are better, `max` if larger values are better.

Each workload lists directions in `DIRECTIONS` of its `config` module, by the last part of the metric's name; a plugin states the direction
when it registers a metric. An unknown direction is an error: with a wrong guess the worst checkpoint would be kept."""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from linnaeus.config.registry import import_here, registered_parts, workload_module
from linnaeus.config.schema import Config
from linnaeus.config.schema_optimization import PlateauConfig
from linnaeus.errors import ConfigError

COMMON = {"loss": "min", "seconds": "min", "ms_per_step": "min", "per_second": "max"}  # of every workload


def with_monitors(config: Config) -> Config:
    """Return the configuration with the final name and direction of each monitored metric.

    The name is that of `measured_name`. The direction `auto` is replaced by the direction of the
    metric if that is already known. A metric that does not exist is refused later, when all metrics are known."""

    def filled(group: Any, monitor: str, mode: str) -> Any:
        metric = measured_name(config, getattr(group, monitor))
        return dataclasses.replace(group, **{monitor: metric, mode: known_direction(getattr(group, mode), metric, config.workload.name)})

    schedule = filled(config.schedule, "best_monitor", "best_mode")
    schedule = dataclasses.replace(schedule, early_stop=filled(schedule.early_stop, "monitor", "mode"))
    scheduler = config.lr_scheduler
    if isinstance(scheduler, PlateauConfig):
        scheduler = filled(scheduler, "monitor", "mode")
    return dataclasses.replace(config, schedule=schedule, lr_scheduler=scheduler)


def measured_name(config: Config, metric: str) -> str:
    """Return the name under which a run measures the metric: `val/...` becomes `val_ema/...` if the averaged weights are validated."""
    is_averaged = config.trainer.ema_decay is not None and config.trainer.ema_validate
    if not is_averaged or not metric.startswith("val") or metric.startswith("val_ema"):
        return metric
    return metric.replace("val", "val_ema", 1)


def nearest_metric(metric: str, measured: Sequence[str]) -> str:
    """Return a hint for the unknown `metric`: the most similar of the metrics `measured`, or the first twelve of them."""
    close = difflib.get_close_matches(metric, measured, 1)
    return f"did you mean {close[0]}?" if close else f"choose from {', '.join(measured[:12])}{', ...' if len(measured) > 12 else ''}"


def directions(workload: str) -> Mapping[str, str]:
    """Return {metric: "min" or "max"} for the metrics of every run, of the workload, and of plugins.

    Raise `ConfigError` for a direction that is neither "min" nor "max"."""
    module = import_here(f"{workload_module(workload)}.config")
    own = getattr(module, "DIRECTIONS", {})
    for metric, value in own.items():
        if value not in ("min", "max"):
            raise ConfigError(f"{module.__name__}.DIRECTIONS: the direction of {metric} is {value!r}; it must be 'min' or 'max'")
    return {**COMMON, **own, **{name: part.direction for name, part in registered_parts("metric").items()}}


def known_direction(mode: str, metric: str, workload: str) -> str:
    """Return `mode` if it is "min" or "max". If it is "auto", return the direction of `metric`; "auto" if this direction is unknown.

    The direction is looked up by the last part of the name (`macro_top1` of `val/species/macro_top1`), then by the ending of this part
    (`top1`). The bounds of an interval (`..._low`, `..._high`) have the direction of their metric."""
    if mode != "auto":
        return mode
    known = directions(workload)
    words = metric.split("/")[-1].removesuffix("_low").removesuffix("_high").split("_")
    endings = ("_".join(words[first:]) for first in range(len(words)))
    return next((known[name] for name in endings if name in known), "auto")


def direction(mode: str, metric: str, workload: str, key: str) -> str:
    """Return the direction of `metric` as `known_direction` does. Raise `ConfigError`, naming the configuration key `key`, if it is
    unknown."""
    found = known_direction(mode, metric, workload)
    if found == "auto":
        raise ConfigError(f"{key} is auto, but it is not known whether a smaller {metric} is better; set {key}=min or {key}=max")
    return found
