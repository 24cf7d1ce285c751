"""What `python main.py -m ...` asks for: the settings every trial has, the parameters that are swept, how trials are started."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from linnaeus.config.load import compose_tree, typed_config
from linnaeus.config.schema_launch import LaunchConfig, SweepConfig
from linnaeus.errors import ConfigError
from linnaeus.rundir.repeat import split_from
from linnaeus.sweep.parameters import Parameter, parameter, parse

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

OURS = ("launch", "sweep")  # groups that are the parent's: no trial is told of them
DECIDE = ("experiment", "debug", *OURS)  # groups whose files may set those of the parent
NOT_OURS = ("sweeper", "launcher", "sweep")  # of Hydra, which starts nothing here


@dataclass(frozen=True)
class Request:
    """`fixed`: settings of every trial, as they were typed; `config_dir`: the folder of groups that joins conf/."""

    fixed: list[str]
    parameters: list[Parameter]
    config_dir: str | None
    sweep: SweepConfig
    launch: LaunchConfig


def read_request(asked: argparse.Namespace) -> Request:
    """Raises `ConfigError` for what no sweep can do."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        raise ConfigError("launch starts processes of its own and cannot run under torchrun; start it with `python main.py`")
    given, rest = split_from(asked.overrides)
    overrides = [parse(text) for text in rest]
    refuse_hydras_own(overrides)
    deciding = [_first(override, asked.config_dir) for override in overrides if belongs(override.key_or_group, DECIDE)]
    default = compose_tree()
    tree = compose_tree(deciding, asked.config_dir, missing_ok=True) if deciding else default
    config = typed_config(default | {group: tree[group] for group in OURS})  # what an experiment lacks, the trials have
    if not asked.multirun:
        fixed = [str(override.input_line) for override in overrides if not belongs(override.key_or_group, OURS)]
        return Request(_with_from(given, fixed), [], asked.config_dir, config.sweep, config.launch)
    check_settings(config.sweep)
    parameters, fixed = divided(config.sweep, overrides, asked.config_dir)
    return Request(_with_from(given, fixed), parameters, asked.config_dir, config.sweep, config.launch)


def divided(sweep: SweepConfig, overrides: Sequence[Override], config_dir: str | None) -> tuple[list[Parameter], list[str]]:
    """What is swept, by `sweep.params` and by settings with several values, which go before; and the settings of every trial."""
    typed = {override.key_or_group for override in overrides}
    filed = [parse(f"{key}={text}") for key, text in sweep.params.items() if key.lstrip("+") not in typed]
    parameters, fixed = [], []
    for override in [*filed, *overrides]:
        if override.is_sweep_override():
            parameters.append(_swept(override, config_dir))
        elif not belongs(override.key_or_group, OURS):
            fixed.append(str(override.input_line))
    return parameters, fixed


def belongs(key: str, groups: Iterable[str]) -> bool:
    """Whether a key or group is one of `groups` or in one."""
    return any(key == group or key.startswith(group + ".") for group in groups)


def refuse_hydras_own(overrides: Iterable[Override]) -> None:
    for override in overrides:
        if belongs(override.key_or_group.replace("/", "."), [f"hydra.{name}" for name in NOT_OURS]):
            raise ConfigError(
                f"{override.input_line} has no effect: trials are started by this program; choose with sweep=grid or sweep=optuna, and "
                "launch=process, launch=torchrun or launch=slurm"
            )


def check_settings(sweep: SweepConfig) -> None:
    """Raises `ConfigError` for settings of a sweep without effect, and for such as lack another."""
    if sweep.metric is None and sweep.mode != "auto":
        raise ConfigError(f"sweep.mode={sweep.mode} has no effect without sweep.metric; set that, or schedule.best_mode instead")
    if sweep.name is not None and (not sweep.name or sweep.name.startswith(".") or "/" in sweep.name):
        raise ConfigError(f"sweep.name: {sweep.name!r} is no name for a directory; use letters, digits, - and _")
    for key in ("trials", "seed"):
        value = getattr(sweep, key)
        if sweep.method == "grid" and value is not None:
            raise ConfigError(f"sweep.{key}={value} has no effect on a grid; choose sweep=optuna, or leave it out")
        if sweep.method == "optuna" and value is None:
            raise ConfigError(f"sweep.{key} is null; sweep=optuna needs a number")


def _with_from(given: str | None, fixed: list[str]) -> list[str]:
    return fixed if given is None else [f"run.from={given}", *fixed]


def _first(override: Override, config_dir: str | None) -> str:
    """A setting with one value; the first of several."""
    if not override.is_sweep_override():
        return str(override.input_line)
    found = _swept(override, config_dir)
    return found.override(found.ends()[0])


def _swept(override: Override, config_dir: str | None) -> Parameter:
    if belongs(override.key_or_group, (*OURS, "run.root", "plan")):
        raise ConfigError(f"{override.input_line}: {override.key_or_group} has one value for a whole sweep; give one")
    return parameter(override, config_dir)
