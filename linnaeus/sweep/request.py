"""Parse the command line of a sweep: the swept parameters, the settings common to all trials, and how trials are started."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from linnaeus.config.load import compose_tree
from linnaeus.config.precedence import parsed
from linnaeus.config.schema import LaunchConfig, SweepConfig
from linnaeus.config.typed_config import typed_config
from linnaeus.errors import ConfigError
from linnaeus.rundir.identity import is_name
from linnaeus.rundir.repeat import split_from
from linnaeus.sweep.parameters import Parameter, read_parameter

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

PARENT_GROUPS = ("launch", "sweep")  # read by the parent, not passed to trials
DECIDING_GROUPS = ("experiment", "debug", *PARENT_GROUPS)  # their files may set keys of the parent's groups


@dataclass(frozen=True)
class Request:
    """Parsed command line of a sweep. `fixed`: the settings common to all trials, as typed. `parameters`: the swept parameters.

    `config_dir`: a folder with further config groups; None: only conf/. `sweep`, `launch`: the groups that the parent process reads."""

    fixed: list[str]
    parameters: list[Parameter]
    config_dir: str | None
    sweep: SweepConfig
    launch: LaunchConfig


def read_request(arguments: argparse.Namespace) -> Request:
    """Return the request of a parsed command line: a sweep with -m, otherwise a single run. Raise `ConfigError` for invalid settings."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        command = " ".join(["-m"] * bool(arguments.multirun) + arguments.overrides)
        raise ConfigError(f"a sweep and launch start their own processes and cannot run under torchrun; type `linnaeus {command}`")
    config_dir = arguments.config_dir
    run_from, rest = split_from(arguments.overrides)
    overrides = parsed(rest)
    deciding = [_first_value(override, config_dir) for override in overrides if is_within(override.key_or_group, DECIDING_GROUPS)]
    default = compose_tree()
    tree = compose_tree(deciding, config_dir, missing_ok=True) if deciding else default
    config = typed_config(default | {group: tree[group] for group in PARENT_GROUPS})  # the trials check all other keys
    if arguments.multirun:
        check_settings(config.sweep)
    parameters, fixed = split_parameters(config.sweep.params if arguments.multirun else {}, overrides, config_dir)
    if run_from is not None:
        fixed = [f"run.from={run_from}", *fixed]
    return Request(fixed, parameters, config_dir, config.sweep, config.launch)


def split_parameters(params: Mapping[str, str], overrides: Sequence[Override], config_dir: str | None) -> tuple[list[Parameter], list[str]]:
    """Return (the swept parameters, the settings common to all trials). `params`: the mapping `sweep.params`. A key in `overrides` replaces
    the same key in `params`."""
    typed = {override.key_or_group for override in overrides}
    from_file = parsed([f"{key}={text}" for key, text in params.items() if key.lstrip("+") not in typed])
    parameters, fixed = [], []
    for override in [*from_file, *overrides]:
        if override.is_sweep_override():
            parameters.append(_swept_parameter(override, config_dir))
        elif not is_within(override.key_or_group, PARENT_GROUPS):
            fixed.append(str(override.input_line))
    return parameters, fixed


def is_within(key: str, groups: Iterable[str]) -> bool:
    """Return True if `key`, a key or a group, is in `groups` or is inside a group that is in `groups`."""
    return any(key == group or key.startswith(group + ".") for group in groups)


def check_settings(sweep: SweepConfig) -> None:
    """Raise `ConfigError` for a setting of `sweep` without effect, for an invalid `sweep.name`, and, with optuna, if `trials` or `seed` is
    missing."""
    if sweep.metric is None and sweep.mode != "auto":
        raise ConfigError(f"sweep.mode={sweep.mode} has no effect without sweep.metric; set that, or schedule.best_mode instead")
    if sweep.name is not None and not is_name(sweep.name):
        raise ConfigError(f"sweep.name: {sweep.name!r} is not a name for a directory; use letters, digits, - and _")
    for key in ("trials", "seed"):
        value = getattr(sweep, key)
        if sweep.method == "grid" and value is not None:
            raise ConfigError(f"sweep.{key}={value} has no effect on a grid; choose sweep=optuna, or leave it out")
        if sweep.method == "optuna" and value is None:
            raise ConfigError(f"sweep.{key} is null; sweep=optuna needs a number")


def _first_value(override: Override, config_dir: str | None) -> str:
    """Return the setting `override` as text. If it has several values, the text contains only the first value."""
    if not override.is_sweep_override():
        return str(override.input_line)
    found = _swept_parameter(override, config_dir)
    return found.override(found.values_to_check()[0])


def _swept_parameter(override: Override, config_dir: str | None) -> Parameter:
    if is_within(override.key_or_group, (*PARENT_GROUPS, "run.root", "plan")):
        raise ConfigError(f"{override.input_line}: {override.key_or_group} has one value for a whole sweep; set one")
    return read_parameter(override, config_dir)
