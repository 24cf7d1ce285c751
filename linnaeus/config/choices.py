"""Replace the value `auto` of a configuration key by a value that the workload chooses from its data.

A workload with such keys has a module `automatic` with two names. `KEYS` maps each of the keys to a placeholder value, which is used where
the data are not read (`--help`). `choose(config, keys)` reads the data and returns a list with a `Choice` for each of `keys`, and the data,
so that the run does not read them again. Values are chosen once, before the configuration is typed, saved and hashed, so a saved
configuration contains the chosen values.

The values of `FOUND_AT_START` are found by the run itself, when its directory and its device are known: by `train.building.micro_batch`, or
by the function `choose_at_start(config, device)` of the module `automatic`, which returns a list of `Choice`. They are a part of the saved
configuration too, so a run that is continued on another kind of device keeps them. The name of the directory does not depend on them."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from linnaeus.config.registry import import_here, workload_module

if TYPE_CHECKING:
    from linnaeus.config.schema import Config

AUTO = "auto"
# Keys whose `auto` is replaced at the first start of a run -> the value that stands for `auto` in the hash of the configuration, and that a
# run of an earlier version has if it was saved without the key.
FOUND_AT_START = {"trainer.micro_batch_size": AUTO, "augment.place": "host"}


@dataclass(frozen=True)
class Choice:
    """Value that replaced `auto` for the key `key`. `reason`: a phrase for the log, without a full stop."""

    key: str
    value: Any
    reason: str

    def __str__(self) -> str:
        return f"{self.key}={_text(self.value)} (auto): {self.reason}"


def automatic_keys(tree: Mapping[str, Any]) -> list[str]:
    """Return the keys of the configuration `tree` (plain values) that have the value `auto` and that the workload can choose."""
    module = _module(tree)
    return [] if module is None else [key for key in module.KEYS if _get(tree, key) == AUTO]


def with_placeholders(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the configuration `tree` in which the placeholder replaces the value `auto`. Placeholders are listed in `KEYS` of
    the workload's module `automatic`."""
    keys = automatic_keys(tree)
    return with_values(tree, {key: _module(tree).KEYS[key] for key in keys}) if keys else dict(tree)  # type: ignore[union-attr]


def with_choices(tree: Mapping[str, Any]) -> tuple[dict[str, Any], list[Choice], Any]:
    """Replace each `auto` in the configuration `tree` by a value that the workload chooses. Return (the new configuration, the choices, the
    data that were read for the choices). Without an `auto`, the choices are [] and the data are None.

    Raise `ConfigError` as `typed_config` does."""
    from linnaeus.config.typed_config import typed_config

    keys = automatic_keys(tree)
    if not keys:
        return dict(tree), [], None
    choices, prepared = _module(tree).choose(typed_config(tree), keys)  # type: ignore[union-attr]
    return with_values(tree, {choice.key: choice.value for choice in choices}), choices, prepared


def choices_at_start(config: Config, device: str, kept: Mapping[str, Any]) -> list[Choice]:
    """Return the values that the workload chooses at the first start of a run, for keys of `FOUND_AT_START` that are `auto`.

    device: "cuda" or "cpu". kept: dotted key -> value, of a run that is continued; these values are chosen again."""
    module = _module({"workload": {"name": config.workload.name}})
    choose = getattr(module, "choose_at_start", None)
    choices = [] if choose is None else choose(config, device)
    again = "from the saved configuration of this run"
    return [Choice(choice.key, kept[choice.key], again) if choice.key in kept else choice for choice in choices]


def with_typed_values(config: Config, values: Mapping[str, Any], choices: tuple[Choice, ...] = ()) -> Config:
    """Return a copy of `config` with `values` set, dotted key -> value of a group, and with further `choices`."""
    found = config
    for key, value in values.items():
        group, name = key.split(".")
        found = dataclasses.replace(found, **{group: dataclasses.replace(getattr(found, group), **{name: value})})
    for name in ("from_environment", "prepared"):  # not fields: a field is a key
        object.__setattr__(found, name, getattr(config, name))
    object.__setattr__(found, "choices", (*config.choices, *choices))
    return found


def choice_lines(config: Config) -> list[str]:
    """Return lines for the log, one for each value that replaced `auto`."""
    return [str(choice) for choice in config.choices]


def _module(tree: Mapping[str, Any]) -> ModuleType | None:
    """Return the module `automatic` of the workload that `tree` names; None if the workload does not have one."""
    name = (tree.get("workload") or {}).get("name")
    if not isinstance(name, str):
        return None
    package = workload_module(name)
    try:
        return import_here(f"{package}.automatic")
    except ModuleNotFoundError as error:
        if error.name is not None and f"{package}.automatic".startswith(error.name):
            return None
        raise


def _get(tree: Mapping[str, Any], key: str) -> Any:
    value: Any = tree
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def with_values(tree: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the configuration `tree` with `values` set. `values`: dotted key -> value."""
    found = copy.deepcopy(dict(tree))
    for key, value in values.items():
        *groups, name = key.split(".")
        group = found
        for part in groups:
            group = group[part]
        group[name] = value
    return found


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
