"""Repeat a run from its saved configuration: `run.from=outputs/x/abc/config.yaml run.name=again`.

The saved file is complete and resolved, so it is not composed again; further settings on the command line change single values. A dataclass
field cannot be called `from`, so `run.from` is not in the schema; `config.schema.FROM_MEANING` is its text in `--help`."""

import dataclasses
import itertools
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linnaeus.config.choices import Choice, automatic_keys, with_choices
from linnaeus.config.command_line import setting_text
from linnaeus.config.environment import plain_tree, saved_tree
from linnaeus.config.load import chosen_experiment, compose_tree, group_files
from linnaeus.config.messages import nearest_key
from linnaeus.config.precedence import as_hydra_takes, check_mappings, empty_given_whole, is_entry, note, parsed
from linnaeus.config.schema import Config
from linnaeus.config.typed_config import typed_config, variants_of
from linnaeus.errors import ConfigError, one_line
from linnaeus.rundir.identity import config_difference, run_path
from linnaeus.rundir.saved_config import fill_defaults

Tree = dict[str, Any]
_FROM = re.compile(r"\s*\+{0,2}run\.from\s*=(.*)", re.DOTALL)
# A saved mode was derived from its metric's name: another metric must derive it again.
_MODES = {
    "schedule.best_monitor": "schedule.best_mode",
    "schedule.early_stop.monitor": "schedule.early_stop.mode",
    "lr_scheduler.monitor": "lr_scheduler.mode",
}
COMMAND_GROUPS = ("launch", "sweep")  # groups that belong to the command, not to the saved run


def split_from(overrides: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return (the value of `run.from`, all other settings). The value is None if `run.from` is not given or null."""
    given, rest = None, []
    for text in overrides:
        match = _FROM.fullmatch(text)
        if match is None:
            rest.append(text)
            continue
        value = match[1].strip()
        quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
        given = value[1:-1] if quoted else None if value == "null" else value
    return given, rest


def find_saved(given: str) -> Path:
    """Return the path of the config.yaml that `run.from=given` names. `given`: this file, or the run directory that contains it.

    Raise `ConfigError` if the file does not exist."""
    path = Path(given)
    file = path / "config.yaml" if path.is_dir() else path
    if not given or not file.is_file():
        reason = "contains no config.yaml" if given and path.is_dir() else "does not exist"
        raise ConfigError(f"run.from: {given!r} {reason}; use the config.yaml of a run, or its directory")
    return file


def another_seed(run: Path, name: str | None, seed: int) -> str:
    """Return a shell command that repeats the run in the directory `run` with another seed, in a new run directory.

    `name`: the `run.name` of the run in `run`. If it is not None, the command names the new run similarly, such as first-seed1 for first,
    with a name that no run has yet."""
    words = ["linnaeus", f"run.from={run / 'config.yaml'}"]
    if name is None:
        return shlex.join([*words, f"seed={seed + 1}"])
    stem = re.sub(r"(?<=.)-seed\d+$", "", name)
    free = next(number for number in itertools.count(seed + 1) if not run.with_name(f"{stem}-seed{number}").exists())
    return shlex.join([*words, f"seed={free}", setting_text("run.name", f"{stem}-seed{free}")])


def read_saved(file: Path) -> Tree:
    """Return a saved configuration as a mapping. Raise `ConfigError` if the file cannot be read or is not a saved configuration."""
    import yaml

    try:
        tree = yaml.safe_load(file.read_bytes().decode())
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:  # ValueError: not UTF-8, or a value such as 2026-02-30
        raise ConfigError(f"run.from: {file} cannot be read ({one_line(error)}); use the config.yaml of a run") from None
    if not isinstance(tree, dict) or not isinstance(tree.get("run"), dict) or not isinstance(tree.get("workload"), dict):
        composed = isinstance(tree, dict) and "defaults" in tree
        hint = "it must be composed: use experiment=" if composed else "it has no groups run and workload"
        raise ConfigError(f"run.from: {file} is not a saved configuration ({hint}); use the config.yaml of a run, or its directory")
    return tree


def compose_run(overrides: Sequence[str] = (), config_dir: Path | str | None = None, missing_ok: bool = False) -> Tree:
    """Return the configuration of a command line as plain mappings. The arguments are those of `compose_tree`.

    Without `run.from` the result is that of `compose_tree`, with the experiment that the workload chooses for this command line; with
    `run.from` it is the saved configuration with single values changed."""
    given, rest = split_from(overrides)
    check_mappings(rest)
    if given is not None:
        return compose_repeat(given, rest, config_dir)
    chosen = [f"{choice.key}={choice.value}" for choice in experiment_of_run(overrides)]
    return compose_tree([*rest, *chosen], config_dir, missing_ok)


def experiment_of_run(overrides: Sequence[str]) -> list[Choice]:
    """Return the experiment that the workload chooses for a command line, see `chosen_experiment`; [] with `run.from`."""
    given, rest = split_from(overrides)
    return [] if given is not None else chosen_experiment(rest)


def run_config(overrides: Sequence[str] = (), config_dir: Path | str | None = None) -> Config:
    """Return the typed configuration of a command line (see `compose_run`). Each value `auto` is replaced by a value chosen from the data.

    Raise `ConfigError` if a value must be chosen for a SLURM job and `trainer.device` is auto: the node of the job may have another
    device."""
    tree = compose_run(overrides, config_dir)
    keys = automatic_keys(tree)
    if keys and tree["launch"]["name"] == "slurm" and tree["trainer"]["device"] == "auto":
        raise ConfigError(f"trainer.device is auto, and {keys[0]} depends on the device: with launch=slurm, set trainer.device=cuda or cpu")
    return typed_config(with_choices(tree)[0])


def compose_repeat(given: str, overrides: Sequence[str], config_dir: Path | str | None = None) -> Tree:
    """Return the configuration of `run.from=given`, changed by the settings `overrides`, as plain mappings.

    Raise `ConfigError` for a file that cannot be used, for a setting that is not a single value of a known key, and if the new run would
    have the same run directory as the repeated run."""
    file = find_saved(given)
    tree, names = fill_defaults(read_saved(file), config_dir)
    try:
        typed_config(tree)
    except ConfigError as error:
        raise ConfigError(f"run.from: {file} does not fit this version of the program: {error}; change a copy of the file") from None
    tree["run"] |= {"allow": [], "resume": "auto" if tree["run"]["resume"] == "never" else tree["run"]["resume"]}
    choices = [text for text in overrides if text.partition("=")[0] in COMMAND_GROUPS]
    tree |= {group: compose_tree(choices, config_dir)[group] for group in COMMAND_GROUPS}
    tree = with_values(tree, [text for text in overrides if text not in choices], config_dir)
    config = typed_config(tree)
    path = run_path(dataclasses.asdict(config), saved_tree(config)).resolve()
    if path in file.resolve().parents:
        raise ConfigError(f"run.from: {given} would repeat the run in its own directory {path}; choose another run.name")
    if names:
        note(f"run.from: {file} is of an earlier version; keys set to their defaults: {', '.join(names)}")
    first = file.parent / "launches" / "1" / "config.yaml"
    changed = _changed_between_starts(first, file)
    for line in changed:
        note(f"run.from: {file} was resumed with another setting; the last one is used from the start: {line}")
    if changed:
        note(f"run.from: this run is not a repetition of that one; run.from={first} repeats it with its first settings")
    return tree


def with_values(tree: Tree, overrides: Sequence[str], config_dir: Path | str | None) -> Tree:
    """Return a copy of the configuration `tree` changed by the settings `overrides` (in the syntax of Hydra).

    Raise `ConfigError` for a setting that chooses the option of a group."""
    from omegaconf import OmegaConf

    groups, variants = group_files(config_dir), variants_of(tree["workload"]["name"])
    config, absent, given = OmegaConf.create(tree), object(), set()
    empty_given_whole(config, variants, overrides)
    for override in parsed(as_hydra_takes(overrides)):
        key = override.key_or_group
        if override.package is not None or key in groups or "/" in key:
            raise ConfigError(
                f"{str(override.input_line).lstrip('+')} chooses a group of files, but the configuration of run.from is already "
                "composed; change single keys, such as trainer.length=3epochs, or leave run.from out"
            )
        exists = OmegaConf.select(config, key, default=absent) is not absent
        deletes_entry = exists and override.is_delete() and is_entry(config, variants, key)
        if not deletes_entry:
            _check_override(override, exists, tree)
        OmegaConf.update(config, key, None if deletes_entry else override.value(), merge=True, force_add=True)
        given.add(key)
    for monitor, mode in _MODES.items():
        if monitor in given and mode not in given and OmegaConf.select(config, mode) is not None:
            OmegaConf.update(config, mode, "auto")
    return plain_tree(config, missing_ok=True)


def _check_override(override: Any, exists: bool, tree: Tree) -> None:
    """Raise `ConfigError` unless the setting gives one value to one existing key. `exists`: True if the key is in the configuration `tree`,
    whose keys the error may propose."""
    from hydra.core.override_parser.types import OverrideType

    key = override.key_or_group
    if override.is_sweep_override():
        raise ConfigError(f"{key} has several values, which is a sweep: add -m for one, or brackets for a list")
    if not exists and override.type in (OverrideType.CHANGE, OverrideType.DEL):
        raise ConfigError(f"unknown key {key}; {nearest_key(key, typed_config(tree))}")
    if exists and override.type is OverrideType.ADD:
        raise ConfigError(f"+{key}: the key exists already; leave the + out")
    if override.type is OverrideType.DEL:
        raise ConfigError(f"~{key} removes a key, and a run needs all keys; set it to null or [] if that is allowed")


def _changed_between_starts(first: Path, file: Path) -> list[str]:
    """Return lines `key: old -> new` for the settings that change updates and differ between the first and the last start of a run. Such
    changes were allowed by `run.allow`.

    `first`, `file`: the config.yaml of the first and of the last start. Return [] if `first` does not exist."""
    if not first.is_file():
        return []
    return list(config_difference(fill_defaults(read_saved(first))[0], fill_defaults(read_saved(file))[0]).altering.values())
