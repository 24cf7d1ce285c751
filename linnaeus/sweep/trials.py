"""A trial: one run of a sweep, composed and checked before anything starts."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linnaeus.config.load import keys_left_out
from linnaeus.config.messages import one_line
from linnaeus.config.schema import Config
from linnaeus.errors import ConfigError
from linnaeus.rundir import RunDirectory, run_path, update_hash
from linnaeus.rundir.repeat import run_config
from linnaeus.sweep.request import Request


@dataclass(frozen=True)
class Trial:
    """`number` from 1; `values`: parameter -> value as it is typed; `overrides`: all settings of its command; `config`: what they
    compose to with the folder `config_dir`; `directory`: its run's."""

    number: int
    values: dict[str, str]
    overrides: list[str]
    config_dir: str | None
    config: Config
    directory: Path

    def is_finished(self) -> bool:
        """Whether its run has nothing left to do. `ConfigError` when the directory holds another run."""
        return RunDirectory(dataclasses.asdict(self.config), config_dir=self.config_dir).finished

    def describe(self) -> str:
        return " ".join(f"{key}={shown(value)}" for key, value in self.values.items()) or "(as given)"


def shown(value: str) -> str:
    """A value as a person reads it: numbers with four digits."""
    try:
        number = float(value)
    except ValueError:
        return value
    return value if len(value) <= 8 else f"{number:.4g}"


def make_trial(request: Request, number: int, values: Mapping[str, str], *, look: bool = True) -> Trial:
    """The trial with these values. Raises `ConfigError`, one line that names it, for a configuration that is wrong, and if `look`, for a
    run directory that it cannot continue."""
    overrides = [*request.fixed, *(p.override(values[p.key]) for p in request.parameters)]
    try:
        config = _composed(overrides, request)
        more = _as_process(overrides, config, request)
        if config.run.name is not None and "run.name" not in values:
            overrides = [text for text in overrides if not re.match(r"\s*\+*run\.name\s*=", text)]
            more.append(f"run.name={_quoted(f'{config.run.name}-{number}')}")
        if more:
            overrides = [*overrides, *more]
            config = _composed(overrides, request)
        trial = Trial(number, dict(values), overrides, request.config_dir, config, run_path(dataclasses.asdict(config)))
        if look:
            trial.is_finished()
    except ConfigError as error:
        raise ConfigError(f"{_name(number, values)}{error}") from None
    return trial


def only_trial(request: Request) -> Trial:
    """The one run of a request without parameters, under its own name."""
    config = _composed(request.fixed, request)
    more = _as_process(request.fixed, config, request)
    config = _composed([*request.fixed, *more], request) if more else config
    return Trial(1, {}, [*request.fixed, *more], request.config_dir, config, run_path(dataclasses.asdict(config)))


def _as_process(overrides: Sequence[str], config: Config, request: Request) -> list[str]:
    """What is to be added so that the run is not launched once more, where an experiment's file chooses how it is launched."""
    if config.launch.name == "process":
        return []
    surplus = keys_left_out([*overrides, "launch=process"], request.config_dir)
    return ["launch=process", *(f"~{key}" for key in surplus if key.startswith("launch."))]


def _composed(overrides: Sequence[str], request: Request) -> Config:
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    try:
        return run_config(overrides, request.config_dir)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(one_line(error)) from None


def _name(number: int, values: Mapping[str, str]) -> str:
    return f"trial {number} ({' '.join(f'{key}={value}' for key, value in values.items())}): " if values else ""


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z_][\w.-]*", text) else "'" + text.replace("'", r"\'") + "'"


def grid(request: Request) -> list[Trial]:
    """Every combination of the values, the last parameter fastest. `ConfigError` for the first that is wrong, and for two that are
    one run."""
    for p in request.parameters:
        if p.choices is None:
            raise ConfigError(f"{p.key}={p.text} is no list of values; choose sweep=optuna, or give some: {p.key}={','.join(p.ends())}")
    keys = [p.key for p in request.parameters]
    combinations = itertools.product(*(p.choices or () for p in request.parameters))
    trials: list[Trial] = []
    first: dict[Path, Trial] = {}
    for number, values in enumerate(combinations, 1):
        trial = make_trial(request, number, dict(zip(keys, values)))
        twin = first.setdefault(trial.directory, trial)
        if twin is not trial:
            raise ConfigError(
                f"trials {twin.number} ({twin.describe()}) and {number} ({trial.describe()}) are the same run {trial.directory}: they "
                "differ in nothing that alters the updates; leave one out, or give run.name"
            )
        trials.append(trial)
    return trials


def sweep_name(request: Request, first: Trial) -> str:
    """`sweep.name`, or ten hexadecimal digits of a hash of what is swept: the same for the same command, however it is launched."""
    if request.sweep.name is not None:
        return request.sweep.name
    content: dict[str, Any] = {
        "parameters": [[p.setting, p.text] for p in request.parameters],
        "first": update_hash(dataclasses.asdict(first.config)),
        "experiment": first.config.run.experiment,
        "run": first.config.run.name,
        "method": request.sweep.method,
    }
    if request.sweep.method == "optuna":  # what it proposes depends on these as well
        content["study"] = [request.sweep.seed, request.sweep.metric, request.sweep.mode]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:10]
