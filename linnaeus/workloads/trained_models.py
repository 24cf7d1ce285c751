"""Load the trained model of a run directory or a bundle (a folder that `linnaeus export` writes), by the module `trained` of its workload.

That module has `load_model(path, **options)`, and `export_model(options)` for `linnaeus export` (`export_cli.py`).
"""

from __future__ import annotations

import importlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from linnaeus.config.registry import import_here, workload_module
from linnaeus.errors import ConfigError, quoted
from linnaeus.files import is_absent, read_json

TRANSFORMERS = ("gpt2", "gpt_neox")  # architectures of transformers that a language model here can have


def load(path: Path, options: Mapping[str, Any]) -> Any:
    """Return the trained model of `path`, a run directory or a bundle: the result of `load_model(path, **options)` in the module `trained`
    of its workload.

    Raise `ConfigError` if `path` is neither a run nor a bundle, and for a workload without such a module."""
    return trained_module(path).load_model(path, **options)


def trained_module(path: Path) -> ModuleType:
    """Return the module `trained` of the workload of a run directory or a bundle. Raise `ConfigError` in the same cases as `load`."""
    name = workload_of(path)
    module = workload_module(name)
    try:
        return import_here(f"{module}.trained") if "." in name else importlib.import_module(f"{module}.trained")
    except ModuleNotFoundError as error:
        if error.name not in (module, f"{module}.trained"):
            raise
        raise ConfigError(
            f"{path} is of workload={name}, whose models cannot be loaded: {module} has no module `trained`; docs/extending.md shows one"
        ) from None


def workload_of(path: Path) -> str:
    """Return the name of the workload of a run directory or a bundle. Raise `ConfigError` for any other path."""
    bundle = own_json(path, "config.json") or {}
    if bundle.get("format") == "linnaeus-model":
        name = bundle.get("workload")
        if name not in ("taxonomy", "language"):  # another name would be imported, and run its code
            raise ConfigError(f"{path} is a bundle of workload={quoted(name)}, which this program does not have")
        return str(name)
    if bundle.get("model_type") in TRANSFORMERS:
        return "language"
    if not path.is_dir() or not (path / "config.yaml").is_file():
        raise ConfigError(f"{path} is neither a run directory (it has no config.yaml) nor a bundle (config.json of linnaeus export)")
    from linnaeus.rundir.saved_run import read_configuration  # imports omegaconf, which a bundle does not need

    return str((read_configuration(path)[0].get("workload") or {}).get("name"))


def own_file(folder: Path, name: str) -> Path:
    """Return the path of the file `name` in `folder`, which may come from other people.

    Raise `ConfigError` if `name` is or contains a link that leads out of the folder, or is a pipe or another object that is not a file. In
    the cache of a model hub, links to its folder `blobs` are allowed. Raise `OSError` if the file does not exist."""
    file, inside = folder / name, Path(os.path.realpath(folder))
    found = Path(os.path.realpath(file))
    blobs = inside.parent.parent / "blobs" if inside.parent.name == "snapshots" else inside
    if not found.is_relative_to(inside) and not found.is_relative_to(blobs):
        raise ConfigError(f"{file} leads to a file outside of the folder, which is not read; put the file itself there")
    if not stat.S_ISREG(os.stat(file).st_mode):
        raise ConfigError(f"{file} is not a file; put the file itself there")
    return file


def own_json(folder: Path, name: str) -> dict[str, Any] | None:
    """Return the JSON object in a file of a folder. Return None if the file does not exist or contains anything else. Raise as
    `own_file`."""
    try:
        return read_json(own_file(folder, name))
    except OSError as error:
        if is_absent(error):
            return None
        raise


def validated(run: Path, source: str) -> dict[str, Any]:
    """Return the validation metrics of a run at a checkpoint, by name; {} if its step was not validated. `source`: path of the checkpoint,
    which contains `step-N`."""
    folder = validation_folder(run, source)
    files = [] if folder is None else sorted(folder.glob("*.json"))
    contents = [read_json(file) or {} for file in files]
    return {name: value for content in contents for name, value in content.get("metrics", {}).items()}


def validation_folder(run: Path, source: str) -> Path | None:
    """Return the folder with the validation results of a run at a checkpoint, which may not exist; None if `source`, the path of the
    checkpoint, does not contain `step-N`."""
    steps = re.findall(r"step-\d+", source)  # the name of the run may contain one, too
    return run / "validation" / steps[-1] if steps else None
