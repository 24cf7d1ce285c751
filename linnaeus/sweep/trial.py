"""Compose and check one trial, a run of a sweep, before any trial starts."""

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from linnaeus.config.environment import saved_tree
from linnaeus.config.load import keys_left_out
from linnaeus.config.messages import explain
from linnaeus.config.schema import Config
from linnaeus.errors import ConfigError
from linnaeus.rundir import RunDirectory, run_path
from linnaeus.rundir.repeat import run_config
from linnaeus.schedule import accumulation_steps
from linnaeus.sweep.request import Request


@dataclass(frozen=True)
class Trial:
    """One run of a sweep.

    `number`: from 1; 0 for a single run outside a sweep. `values`: parameter key -> value, as text in Hydra's grammar. `overrides`: all
    settings of the run's command line. `config_dir`: a folder with further config groups; None: only conf/. `config`: the typed
    configuration. `directory`: the run directory."""

    number: int
    values: dict[str, str]
    overrides: list[str]
    config_dir: str | None
    config: Config
    directory: Path

    def run_directory(self) -> RunDirectory:
        """Return the run directory as a `RunDirectory`. Raise `ConfigError` if it contains a run with another configuration."""
        return RunDirectory(dataclasses.asdict(self.config), config_dir=self.config_dir, saved=saved_tree(self.config))

    def is_finished(self) -> bool:
        """Return True if the run has ended well. Raise `ConfigError` if the directory contains a run with another configuration."""
        return self.run_directory().finished

    def describe(self) -> str:
        return " ".join(f"{key}={short_value(value)}" for key, value in self.values.items()) or "(as given)"


def short_value(value: str) -> str:
    """Return `value` as text for tables. A number with more than 8 characters that is not an integer is rounded to four digits.

    An integer, such as a seed, is not rounded: two of them would look the same."""
    try:
        number = float(value)
    except ValueError:
        return value
    is_short = len(value) <= 8 or value.removeprefix("-").isdecimal() or not math.isfinite(number)
    return value if is_short else f"{number:.4g}"


def make_trial(request: Request, number: int, values: Mapping[str, str], *, check_directory: bool = True) -> Trial:
    """Return the trial with the given `values` of the swept parameters, composed and checked.

    In a sweep, `-number` is appended to `run.name` if that is set. Raise `ConfigError`, one line with the number of the trial, for an
    invalid configuration. With `check_directory`, also raise it if the run directory contains a run that the trial cannot continue."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    overrides = [*request.fixed, *(p.override(values[p.key]) for p in request.parameters)]
    try:
        config = run_config(overrides, request.config_dir)
        accumulation_steps(config, request.launch.world_size)  # refused here, before a process is started
        if config.plan and request.launch.name == "slurm":  # it would wait for a job of the run, which Ctrl-C would then stop
            raise ConfigError("plan=true submits no SLURM job; leave out launch=slurm and its keys, or add launch=process")
        more = []
        if config.launch.name != "process":  # the experiment's file selects a launcher, which only the parent uses
            surplus = keys_left_out([*overrides, "launch=process"], request.config_dir)
            more = ["launch=process", *(f"~{key}" for key in surplus if key.startswith("launch."))]
        if number and config.run.name is not None and "run.name" not in values:
            overrides = [text for text in overrides if not re.match(r"\s*\+*run\.name\s*=", text)]
            more.append(f"run.name={_quoted(f'{config.run.name}-{number}')}")
        if more:
            overrides = [*overrides, *more]
            config = run_config(overrides, request.config_dir)
        trial = Trial(number, dict(values), overrides, request.config_dir, config, run_path(dataclasses.asdict(config), saved_tree(config)))
        if check_directory:
            trial.is_finished()
    except (ConfigError, HydraException, OmegaConfBaseException) as error:
        name = f"trial {number} ({' '.join(f'{key}={value}' for key, value in values.items())}): " if values else ""
        raise ConfigError(name + explain(error)) from None
    return trial


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z_][\w.-]*", text) else "'" + text.replace("'", r"\'") + "'"
