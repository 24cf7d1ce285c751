"""List the validation passes of a schedule: their names, the combinations of metadata components that they mask, and which of them run at
the last step.

A partial pass masks some of the metadata components. Its index is the position of its combination in this order: first the combinations
listed in the configuration, then (with `schedule.all_combinations_at_end`) every other non-empty proper subset, smallest first. The pass
that masks all components is `validate_mask_meta`."""

from collections.abc import Mapping, Sequence
from itertools import combinations

from linnaeus.config.schema_schedule import ScheduleConfig
from linnaeus.errors import ConfigError
from linnaeus.schedule.events import Every

Combination = tuple[str, ...]

PARTIAL = "validate_partial_mask_meta"
PASSES = ("validate", "validate_mask_meta", PARTIAL)


def listed_combinations(
    listed: Sequence[Sequence[str]] | None, components: Sequence[str] | None, declared: Sequence[str] = ()
) -> tuple[Combination, ...]:
    """Return the combinations of `schedule.partial_combinations`, each in the order of `components`, the metadata of the validation data.

    `listed=None` means each component alone. If there is only one component it means no combination, because the pass without metadata is
    the same. `components=None` means that the data are not known yet; the combinations then keep their order. A combination is left out if
    it has a component that `data.components` declares (`declared`) but the validation data lack. Raise `ConfigError` for an empty or
    repeated combination, and for an unknown component."""
    if listed is None:
        single = declared if components is None else components
        return tuple((name,) for name in single) if len(single) > 1 else ()
    found: list[Combination] = []
    for i, names in enumerate(listed):
        key = f"schedule.partial_combinations[{i}]"
        for name in names:
            if components is not None and name not in (*components, *declared):
                off = "schedule.partial_combinations=[] schedule.validate_partial_mask_meta=[]"
                raise ConfigError(f"{key} names {name}, but the metadata of the data are {', '.join(components)}; remove it, or set {off}")
        if len(set(names)) != len(names):
            raise ConfigError(f"{key} names a component twice; name each once")
        combination = tuple(names) if components is None else tuple(c for c in components if c in names)
        if components is not None and len(combination) < len(names):
            continue
        if not combination or combination in found:
            raise ConfigError(f"{key} is {'empty' if not combination else 'listed twice'}; remove it")
        found.append(combination)
    return tuple(found)


def all_combinations(listed: Sequence[Combination], components: Sequence[str]) -> tuple[Combination, ...]:
    """Return the `listed` combinations, then every other non-empty proper subset of `components`, smallest first."""
    subsets = [c for size in range(1, len(components)) for c in combinations(components, size)]
    return (*listed, *(c for c in subsets if c not in listed))


def passes_of_last_step(schedule: ScheduleConfig, events: Mapping[str, Every], every_combination: bool) -> tuple[str, ...]:
    """Return the names of the validation passes that run at the last step.

    `schedule.validate_at_end` adds the normal pass and the passes that have intervals; `every_combination` adds the passes that mask
    metadata."""
    masking = PASSES[1:] if every_combination else ()
    at_end = [name for name in PASSES if name == "validate" or events[name].cadences] if schedule.validate_at_end else []
    return tuple(name for name in PASSES if name in masking or name in at_end)


def event_of_metric(metric: str) -> str:
    """Return the event (`PASSES`) of the validation pass that measures `metric`: "validate" for `val/loss` and `val_ema/loss`."""
    prefix = metric.split("/")[0]
    return "validate_mask_meta" if "mask_meta" in prefix else PARTIAL if "mask" in prefix else "validate"


def check_monitor(schedule: ScheduleConfig) -> None:
    """Raise `ConfigError` if early stopping monitors a metric of a validation pass that never runs."""
    stop = schedule.early_stop
    if stop.patience is None and stop.metric_bound is None:
        return
    name = event_of_metric(stop.monitor)
    if not getattr(schedule, name):
        raise ConfigError(
            f"schedule.early_stop.monitor is {stop.monitor}, which is never measured: schedule.{name} is []; set it, such as [1epochs]"
        )
