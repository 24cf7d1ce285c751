"""The command line of `python main.py`, checked before it reaches Hydra.

Hydra silently takes the last of two overrides of one key, prints its usage for an unknown option, and sweeps once per process under
torchrun. Here each of these is an error of one line.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import NoReturn

from linnaeus.errors import ConfigError

KEY = re.compile(r"\s*(\+\+|\+|~)?\s*([^=\s]+?)\s*=")
_SWEEP = re.compile(r"\s*\+{0,2}sweep(\.\w+)*\s*=")
_HYDRA = re.compile(r"\s*[+~]{0,2}hydra[./](?!searchpath)")


def parse_command_line(arguments: Sequence[str]) -> argparse.Namespace:
    """Return Hydra's options and `overrides`. Raise `ConfigError` for an unknown option, a wrong value, conflicting options, and a key that
    is given twice."""
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()
    parser.error = _refuse  # type: ignore[method-assign]
    parsed = parser.parse_intermixed_args(list(arguments))  # options may stand between settings
    modes = {"--run": parsed.run, "--multirun": parsed.multirun, "--cfg": parsed.cfg, "--info": parsed.info}
    given = [option for option, value in modes.items() if value not in (None, False)]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} exclude each other; give one")
    if parsed.resolve and parsed.cfg is None:
        raise ConfigError("--resolve has no effect without --cfg; add --cfg job")
    _refuse_hydras_own(parsed)
    nameless = next((text for text in parsed.overrides if text.lstrip().startswith("=")), None)
    if nameless:
        raise ConfigError(f"{nameless!r} is not a setting; give it as key=value")
    check_given_once(parsed.overrides)
    sweep = next((text for text in parsed.overrides if _SWEEP.match(text)), None)
    if sweep and not (parsed.multirun or parsed.help or parsed.cfg or parsed.info):  # which only show what it would be
        raise ConfigError(f"{sweep} has no effect without -m; type `python main.py -m {' '.join(parsed.overrides)}`")
    return parsed


def for_hydra(arguments: Sequence[str], parsed: argparse.Namespace) -> list[str]:
    """Return the arguments for Hydra's own application: options first, then overrides that show the configuration of a run."""
    from linnaeus.config.load import compose_for_hydra

    options = list(arguments)
    for text in parsed.overrides:
        options.remove(text)
    shows = parsed.cfg or parsed.info
    return [*options, *(compose_for_hydra(parsed.overrides, parsed.config_dir) if shows else parsed.overrides)]


def _refuse_hydras_own(parsed: argparse.Namespace) -> None:
    """Raise `ConfigError` for options of Hydra's own application, which have no effect here."""
    options = {"--config-name": parsed.config_name, "--config-path": parsed.config_path, "--package": parsed.package}
    options["--experimental-rerun"] = parsed.experimental_rerun
    shows = parsed.cfg or parsed.info or parsed.hydra_help
    for option, value in options.items():
        if value is not None and not (option == "--package" and shows):
            raise ConfigError(f"{option} {value} has no effect here; choose with experiment=NAME, and add folders with --config-dir")
    for text in parsed.overrides if not shows else ():
        if _HYDRA.match(text) and not parsed.multirun:
            raise ConfigError(f"{text} has no effect here: Hydra only composes; run.root and run.name set the run directory")


def _refuse(message: str) -> NoReturn:
    raise ConfigError(f"{message}; settings are given as key=value, `python main.py --help` lists them")


def check_given_once(overrides: Sequence[str]) -> None:
    """Raise `ConfigError` for a key with two values; Hydra would silently take the last."""
    seen: dict[str, str] = {}
    for text in overrides:
        match = KEY.match(text)
        key = match[2] if match else text
        if key in seen:
            raise ConfigError(f"{key} is given twice, {seen[key]!r} and {text!r}; keep one")
        seen[key] = text


def refuse_sweep_under_launcher(parsed: argparse.Namespace, environment: Mapping[str, str]) -> None:
    """Raise `ConfigError` for a sweep under torchrun: each process would run the whole sweep in the same directories."""
    if parsed.multirun and "RANK" in environment and "WORLD_SIZE" in environment:
        wanted = " ".join(parsed.overrides)
        raise ConfigError(
            f"a sweep cannot run under torchrun, because every process would run all of it; type `python main.py -m {wanted}`"
        )
