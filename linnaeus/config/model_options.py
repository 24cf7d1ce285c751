"""Command-line options that are common to the subcommands with a trained model (`predict`, `evaluate`, ...): help, limits and use of
each."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linnaeus.errors import ConfigError

MODELS = {  # first argument -> its text
    "run": "directory of a run, such as outputs/biota/1a2b3c4d5e",
    "model": "directory of a run, or a bundle of `linnaeus export`",
}
OPTIONS: dict[str, dict[str, Any]] = {
    "checkpoint": {"metavar": "WHICH", "help": "of a run: best, newest or a step (best)"},
    "device": {"default": "cpu", "metavar": "DEVICE", "help": "cpu or cuda (cpu)"},
    "threads": {"type": int, "metavar": "N", "help": "cores that are used (all)"},
    "plugins": {"nargs": "+", "default": [], "metavar": "PACKAGE", "help": "packages that a bundle may import"},
    "checklist": {"type": Path, "metavar": "FILE", "help": "table or list of the names of the taxa that are possible"},
    "clade": {"action": "append", "default": [], "metavar": "NAME", "help": "taxon that the answers are in, such as Aves or genus:Morus"},
    "tta": {"choices": ("none", "flip"), "help": "flip: mean of the photograph and its mirror image (as in the run's validation)"},
    "precision": {"type": float, "metavar": "P", "help": "of the answers of a calibrated model (0.95, or the lowest of the calibration)"},
    "region": {"metavar": "NAME=FILE", "help": "region, and the table of taxa and regions that has its possible taxa"},
}
OF_LOAD_MODEL = ("checkpoint", "device", "plugins", "tta")
RANGES = {"threads": (1, 1024), "batch_size": (1, 65536)}


def add_model(parser: argparse.ArgumentParser, name: str, more: str = "", required: bool = True) -> None:
    """Add the positional argument RUN or MODEL to a parser.

    `name`: "run" or "model". `more`: text that is appended to the help of the argument. `required`: False if the argument may be left
    out."""
    parser.add_argument(name, metavar=name.upper(), type=Path, nargs=None if required else "?", help=MODELS[name] + more)


def add_model_options(parser: argparse._ActionsContainer, *names: str) -> None:
    """Add the options with these names from `OPTIONS` to a parser."""
    for name in names:
        parser.add_argument(f"--{name}", **OPTIONS[name])


def load_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return {name: value} of the parsed options that are keyword arguments of `load_model`."""
    return {name: value for name, value in vars(options).items() if name in OF_LOAD_MODEL}


def check_ranges(options: argparse.Namespace, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Raise `ConfigError` if an option is outside its range. `ranges`: {option: (lowest, highest value)}. The ranges in `RANGES` are also
    checked."""
    for name, (low, high) in {**ranges, **RANGES}.items():
        value = getattr(options, name)
        if value is not None and not low <= value <= high:
            shown = value if isinstance(value, int) else f"{value:g}"
            raise ConfigError(f"--{name.replace('_', '-')} is {shown}; it must be from {low:g} to {high:g}")


def use_threads(options: argparse.Namespace) -> int:
    """Set the number of torch's CPU threads to `--threads`, or to all cores that this process may use. Return the number."""
    import torch

    threads: int = options.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    return threads
