"""The direction of a metric: min if a smaller value is better, max if a larger one is.

Each workload states it for its own metrics in `DIRECTIONS` of its `config` module, by the last part of the metric's name; a plugin
states it when it registers a metric. An unknown metric is an error: a guess would keep the worst checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping

from linnaeus.config.registry import import_here, registered_parts
from linnaeus.errors import ConfigError

COMMON = {"loss": "min", "seconds": "min", "ms_per_step": "min", "per_second": "max"}  # of every workload


def workload_module(name: str) -> str:
    """Return the package of a workload: one of ours by its short name, anything else by its dotted path."""
    return name if "." in name else f"linnaeus.workloads.{name}"


def directions(workload: str) -> Mapping[str, str]:
    """Return metric -> min or max, of a workload and of registered metrics."""
    own = getattr(import_here(f"{workload_module(workload)}.config"), "DIRECTIONS", {})
    return {**COMMON, **own, **{name: part.direction for name, part in registered_parts("metric").items()}}


def known_direction(mode: str, metric: str, workload: str) -> str:
    """Return `mode` unless it is auto; then the direction of `metric`: of the last part of its name (`val/species/macro_top1`), or of an
    ending of it (`top1`). The bounds of an interval (`..._low`, `..._high`) have the direction of their metric. Still auto: unknown."""
    if mode != "auto":
        return mode
    known = directions(workload)
    words = metric.split("/")[-1].removesuffix("_low").removesuffix("_high").split("_")
    endings = ("_".join(words[first:]) for first in range(len(words)))
    return next((known[name] for name in endings if name in known), "auto")


def direction(mode: str, metric: str, workload: str, key: str) -> str:
    """Return `known_direction`. Raise `ConfigError` that names `key` if it is unknown."""
    found = known_direction(mode, metric, workload)
    if found == "auto":
        raise ConfigError(f"{key} is auto, but it is not known whether a smaller {metric} is better; set {key}=min or {key}=max")
    return found
