"""`run.from=outputs/x/abc/config.yaml run.name=again` repeats a run from the configuration it saved.

The saved file is complete and resolved, so nothing is composed; further settings replace single values. `from` cannot be a field of
a dataclass, so the key lives here and not in the schema; `FROM_MEANING` is what `--help` says of it.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linnaeus.config.load import compose_tree, group_files, typed_config, variants_of
from linnaeus.config.messages import nearest_key
from linnaeus.config.precedence import as_hydra_takes, empty, given_whole, is_entry, parsed
from linnaeus.config.schema import Config
from linnaeus.errors import ConfigError
from linnaeus.rundir.identity import config_difference, run_path
from linnaeus.rundir.saved import filled

log = logging.getLogger("linnaeus")

Tree = dict[str, Any]
_FROM = re.compile(r"\s*\+{0,2}run\.from\s*=(.*)", re.DOTALL)
# A saved `mode` was settled by its metric's name: another metric settles it anew.
_MODES = {
    "schedule.best_monitor": "schedule.best_mode",
    "schedule.early_stop.monitor": "schedule.early_stop.mode",
    "lr_scheduler.monitor": "lr_scheduler.mode",
}
HOW_STARTED = ("launch", "sweep")  # groups that say nothing of a run itself: the command's, as always, not the saved ones


def split_from(overrides: Sequence[str]) -> tuple[str | None, list[str]]:
    """(the value of `run.from`, None when it is not given or null; the other overrides)."""
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


def saved_file(given: str) -> Path:
    """The config.yaml that a file or a run directory stands for."""
    path = Path(given)
    file = path / "config.yaml" if path.is_dir() else path
    if not given or not file.is_file():
        what = "holds no config.yaml" if given and path.is_dir() else "is not there"
        raise ConfigError(f"run.from: {given!r} {what}; give the config.yaml of a run, or its directory")
    return file


def read_saved(file: Path) -> Tree:
    """The mapping of a saved configuration; ConfigError when the file is something else."""
    import yaml

    try:
        tree = yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            f"run.from: {file} cannot be read ({' '.join(str(error).split())[:160]}); give the config.yaml of a run"
        ) from None
    if not isinstance(tree, dict) or not isinstance(tree.get("run"), dict) or not isinstance(tree.get("workload"), dict):
        hint = "it is to be composed: use experiment=" if isinstance(tree, dict) and "defaults" in tree else "it has no run and workload"
        raise ConfigError(f"run.from: {file} is no saved configuration ({hint}); give the config.yaml of a run, or its directory")
    return tree


def compose_run(overrides: Sequence[str] = (), config_dir: Path | str | None = None, missing_ok: bool = False) -> Tree:
    """Return the plain configuration of a command: `compose_tree`, or with `run.from=` the saved configuration with single values
    changed."""
    given, rest = split_from(overrides)
    return compose_tree(rest, config_dir, missing_ok) if given is None else repeated(given, rest, config_dir)


def run_config(overrides: Sequence[str] = (), config_dir: Path | str | None = None) -> Config:
    """Return the typed configuration of a command; see `compose_run`."""
    return typed_config(compose_run(overrides, config_dir))


def repeated(given: str, overrides: Sequence[str], config_dir: Path | str | None = None) -> Tree:
    """The plain configuration of `run.from=given` with further overrides. ConfigError, one line, for a file that cannot be used, an
    override that is no single known key, and a directory that is the repeated run's own."""
    file = saved_file(given)
    tree, names = filled(read_saved(file), config_dir)
    try:
        typed_config(tree)
    except ConfigError as error:
        raise ConfigError(f"run.from: {file} does not fit this version of the program: {error}; change a copy of the file") from None
    tree["run"] |= {"allow": [], "resume": "auto" if tree["run"]["resume"] == "never" else tree["run"]["resume"]}
    choices = [text for text in overrides if text.partition("=")[0] in HOW_STARTED]
    tree |= {group: compose_tree(choices, config_dir)[group] for group in HOW_STARTED}
    tree = _with_values(tree, [text for text in overrides if text not in choices], config_dir)
    path = run_path(dataclasses.asdict(typed_config(tree))).resolve()
    if path in file.resolve().parents:
        raise ConfigError(f"run.from: {given} would repeat the run in its own directory {path}; choose another one with run.name=...")
    if names:
        log.warning("run.from: %s is of an earlier version; at their defaults: %s", file, ", ".join(names))
    for line in _altered_on_the_way(file):
        log.warning("run.from: %s was continued with another setting, the last is repeated from the start: %s", file, line)
    return tree


def _with_values(tree: Tree, overrides: Sequence[str], config_dir: Path | str | None) -> Tree:
    """The tree with the values of overrides in Hydra's grammar."""
    from omegaconf import OmegaConf

    groups, variants = group_files(config_dir), variants_of(tree["workload"]["name"])
    config, absent, given = OmegaConf.create(tree), object(), set()
    empty(config, given_whole(config, variants, overrides))
    for override in parsed(as_hydra_takes(overrides)):
        key = override.key_or_group
        if override.package is not None or key in groups or "/" in key:
            raise ConfigError(
                f"{str(override.input_line).lstrip('+')} chooses a group of files, but run.from takes a configuration that is composed "
                "already; change single keys, such as trainer.length=3epochs, or leave run.from out"
            )
        is_there = OmegaConf.select(config, key, default=absent) is not absent
        takes_entry = is_there and override.is_delete() and is_entry(config, variants, key)
        if not takes_entry:
            _refuse_no_value(override, is_there)
        OmegaConf.update(config, key, None if takes_entry else override.value(), merge=True, force_add=True)
        given.add(key)
    for monitor, mode in _MODES.items():
        if monitor in given and mode not in given and OmegaConf.select(config, mode) is not None:
            OmegaConf.update(config, mode, "auto")
    found = OmegaConf.to_container(config, resolve=True)
    assert isinstance(found, dict)
    return typing.cast(Tree, found)


def _refuse_no_value(override: Any, is_there: bool) -> None:
    """ConfigError for an override that is not one value of one key that there is."""
    from hydra.core.override_parser.types import OverrideType

    key = override.key_or_group
    if override.is_sweep_override():
        raise ConfigError(f"{key} has several values, which is a sweep: add -m for one, or brackets for a list")
    if not is_there and override.type in (OverrideType.CHANGE, OverrideType.DEL):
        raise ConfigError(f"unknown key {key}; {nearest_key(key)}")
    if is_there and override.type is OverrideType.ADD:
        raise ConfigError(f"+{key}: the key is there already; leave the + out")
    if override.type is OverrideType.DEL:
        raise ConfigError(f"~{key} takes a key away, and a run needs all of them; set it to null or [] where it may be")


def _altered_on_the_way(file: Path) -> list[str]:
    """Settings that alter updates and changed (by `run.allow`) between the first start of a run and its last."""
    first = file.parent / "launches" / "1" / "config.yaml"
    if not first.is_file():
        return []
    return list(config_difference(filled(read_saved(first))[0], filled(read_saved(file))[0]).altering.values())
