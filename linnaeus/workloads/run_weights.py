"""Find a finished run, read its configuration and files, and choose the weights of a checkpoint.

The modules `trained` of workloads use these functions. Error messages name the argument RUN."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from linnaeus.checkpoint.choice import BEST, NEWEST, is_validated
from linnaeus.checkpoint.initial_weights import InitialWeights, read_initial_weights
from linnaeus.checkpoint.resume import checkpoints_under
from linnaeus.errors import ConfigError

if TYPE_CHECKING:
    from linnaeus.config.schema import Config

T = TypeVar("T")
CONFIG = "config.yaml"


def find_run(path: Path) -> Path:
    """Return the run directory that is `path` or contains it. Raise `ConfigError` if there is none."""
    if not path.exists():
        raise ConfigError(f"RUN: {path} does not exist; use the directory of a run, or one of its checkpoints")
    run = next((folder for folder in (path, *path.resolve().parents[:3]) if (folder / CONFIG).is_file()), None)
    if run is None:
        raise ConfigError(f"RUN: {path} is not a run: it has no {CONFIG}; use the directory of a run, or one of its checkpoints")
    return run


def run_configuration(run: Path, workload: str) -> Config:
    """Return the configuration of a run. Raise `ConfigError` for a run of another workload."""
    from linnaeus.config.typed_config import typed_config
    from linnaeus.rundir.repeat import read_saved  # imports Hydra, which a folder of transformers does not need
    from linnaeus.rundir.saved_config import fill_defaults

    tree = read_saved(run / CONFIG)
    if tree["workload"].get("name") != workload:
        raise ConfigError(f"RUN: {run} is a run of workload={tree['workload'].get('name')}; it must be a run of workload={workload}")
    return typed_config(fill_defaults(tree)[0])


def read_run_file(file: Path, convert: Callable[[Any], T]) -> T:
    """Return the content of a JSON file of a run, converted by `convert`. Raise `ConfigError` if the file is missing or damaged."""
    try:
        return convert(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise ConfigError(f"RUN: {file} is missing; copy it from another run with the same data and model") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        line = " ".join(str(error).split())
        raise ConfigError(f"RUN: {file} is damaged ({line}); copy it from another run with the same data and model") from None


def chosen_weights(path: Path, checkpoint: str | None) -> InitialWeights:
    """Return the weights of a checkpoint of the run `path`. `checkpoint`: best, newest or a step; None: the best if a checkpoint was
    validated, else the newest."""
    if checkpoint is None and path.is_dir() and checkpoints_under(path):
        checkpoint = BEST if is_validated(path) else NEWEST
    try:
        return read_initial_weights(str(path), "RUN", checkpoint)
    except ConfigError as error:
        raise ConfigError(str(error).removeprefix("RUN: ")) from None


def folder_of(weights: InitialWeights, name: str) -> Path | None:
    """Return the run directory or bundle that contains the file of `weights`: the nearest folder with a file `name`; None if there is
    none."""
    folders = Path(weights.source).resolve().parents[:3]
    return next((folder for folder in folders if (folder / name).is_file()), None)


def available_device(device: str) -> str:
    """Return the device for the option `--device`, cpu or cuda; for `auto`, cuda if the machine has a GPU, otherwise cpu.

    Raise `ConfigError` for cuda on a machine without a GPU."""
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device=cuda: this machine has no CUDA device; use --device=cpu")
    return device
