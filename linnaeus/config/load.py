"""Compose the configuration from YAML files and command-line settings.

`compose_tree` uses the composition of Hydra, but not `@hydra.main`. `compose` also converts the resulting plain mapping to dataclasses and
checks it, as `typed_config.typed_config` does."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from linnaeus.config.choices import Choice
from linnaeus.config.precedence import apply_typed, as_hydra_takes, left_out, parsed, typed
from linnaeus.config.registry import import_here, import_plugins, workload_module
from linnaeus.config.schema import VARIANTS, Config
from linnaeus.config.typed_config import typed_config, variants_of
from linnaeus.errors import ConfigError, one_line

if TYPE_CHECKING:
    from omegaconf import DictConfig

DEFAULT_WORKLOAD = "taxonomy"  # of conf/config.yaml
CONF = (Path(__file__).parents[1] / "conf").resolve()  # a link to conf/ at the top level; a folder in an installed package


def compose(overrides: Sequence[str] = (), config_dir: Path | str | None = None, missing_ok: bool = False) -> Config:
    """Compose the configuration as `compose_tree` does and return it typed, as `typed_config` does. The arguments are those of
    `compose_tree`."""
    return typed_config(compose_tree(overrides, config_dir, missing_ok))


def compose_tree(overrides: Sequence[str] = (), config_dir: Path | str | None = None, missing_ok: bool = False) -> dict[str, Any]:
    """Return `conf/config.yaml` with the settings `overrides` applied by Hydra, as plain values that `typed_config` has not checked yet.

    A value from the environment remains the text `${oc.env:...}`. `config_dir`: a folder with further config groups. `missing_ok`: True to
    give a required key without a value the value `???`; False to raise an error for such a key."""
    from linnaeus.config.environment import plain_tree

    composed, variants = _composed(overrides, config_dir)
    apply_typed(composed, variants, overrides)
    return plain_tree(composed, missing_ok)


def keys_left_out(overrides: Sequence[str], config_dir: Path | str | None = None) -> list[str]:
    """Return keys of the experiment file that have no effect, because `overrides` chooses an option of their group that does not have these
    keys.

    An example: the experiment file sets `launch=slurm` and `launch.partition`, and `overrides` contains `launch=torchrun`; then the result
    is ["launch.partition"]. Keys that `overrides` sets itself are not returned."""
    return left_out(*_composed(overrides, config_dir), overrides)


def _composed(overrides: Sequence[str], config_dir: Path | str | None) -> tuple[DictConfig, dict[str, dict[str, type]]]:
    """Return Hydra's composed configuration, and the mapping group -> option -> dataclass for the workload that it names.

    Raise `ConfigError` if `config_dir` does not exist, and for a key or an option that does not exist."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    from linnaeus.config.messages import unknown_key

    if config_dir is not None and not (config_dir and Path(config_dir).is_dir()):
        raise ConfigError(f"--config-dir: {str(config_dir)!r} is not a folder; give a folder of config groups like conf/")
    _check_group_names(overrides, config_dir)
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"), _without_parts_of_hydra():
            composed = hydra_compose("config", [*as_hydra_takes(overrides), *chosen_options(overrides), *search_path(config_dir)])
    except HydraException as error:
        raise unknown_key(error, overrides, config_dir) or error from None
    except (OSError, ValueError, RecursionError):
        check_files(config_dir)
        raise
    import_plugins(OmegaConf.select(composed, "plugins") or [])
    workload = OmegaConf.select(composed, "workload.name")
    _check_workload(workload, overrides)
    return composed, variants_of(workload) if isinstance(workload, str) else VARIANTS


def _check_workload(name: object, overrides: Sequence[str]) -> None:
    """Raise `ConfigError` if `overrides` chooses a workload of this program and the experiment file names another one. `name`: the composed
    `workload.name`."""
    given = typed(overrides)
    chosen = given.get("workload")
    if chosen != name and chosen in [file.stem for file in group_files()["workload"]] and "workload.name" not in given:
        source = f"experiment={given['experiment']}" if "experiment" in given else "a file of the configuration"
        raise ConfigError(f"workload={chosen} has no effect: {source} sets workload.name={name}; leave one of them out")


def search_path(config_dir: Path | str | None) -> list[str]:
    """Return the setting with which Hydra also searches the folder `config_dir`; [] without a folder."""
    from hydra.core.override_parser.types import Quote, QuotedString

    if not config_dir:
        return []
    return [f"hydra.searchpath=[{QuotedString(f'file://{Path(config_dir).resolve()}', Quote.single).with_quotes()}]"]


def check_files(config_dir: Path | str | None) -> None:
    """Raise `ConfigError` for a file of a group that Hydra cannot read, for example because it is not UTF-8 or has the value 0x_."""
    from omegaconf import OmegaConf

    for file in (file for files in group_files(config_dir).values() for file in files):
        try:
            OmegaConf.load(file)
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{file} cannot be read ({one_line(error)}); correct it") from None


@contextlib.contextmanager
def _without_parts_of_hydra() -> Iterator[None]:
    """Return a context manager in which Hydra composes without its own launcher, sweeper, logging and help. A composition then takes 90 ms
    instead of 130."""
    from hydra.core.config_store import ConfigStore

    group = ConfigStore.instance().repo["hydra"]
    whole = group["config.yaml"]
    group["config.yaml"] = dataclasses.replace(whole, node=_bare_hydra())
    try:
        yield
    finally:
        group["config.yaml"] = whole


@functools.cache
def _bare_hydra() -> Any:
    """Return the configuration of Hydra itself with an empty list of defaults."""
    from hydra.conf import HydraConf
    from omegaconf import OmegaConf

    return OmegaConf.structured(HydraConf(defaults=[]))


def _check_group_names(overrides: Sequence[str], config_dir: Path | str | None) -> None:
    """Raise `ConfigError` if a setting gives a group a list with entries that are not names. (Hydra would raise a TypeError.)"""
    groups = group_files(config_dir)
    for override in parsed(overrides):
        value = override.value() if override.key_or_group in groups else None
        if isinstance(value, list) and not all(isinstance(name, str) for name in value):
            raise ConfigError(f"{override.input_line}: a group takes the name of one of its files, as in trainer=default")


def group_files(config_dir: Path | str | None = None) -> dict[str, list[Path]]:
    """Return {group: its YAML files}, for the groups of `conf/` and of `config_dir`."""
    found: dict[str, list[Path]] = {}
    for root in (CONF, Path(config_dir)) if config_dir else (CONF,):
        for folder in sorted(path for path in root.iterdir() if path.is_dir()):
            found.setdefault(folder.name, []).extend(sorted(folder.glob("*.yaml")))
    return found


def chosen_options(overrides: Sequence[str]) -> list[str]:
    """Return the settings GROUP=OPTION that follow from the keys in `overrides`, by the mapping `CHOOSES` in the workload's module
    `config`.

    An entry {key: (group, option)} of `CHOOSES` gives GROUP=OPTION if the command line names the workload, gives `key` a value other than
    null, and does not itself choose an option of `group`."""
    given = typed(overrides)
    table: dict[str, tuple[str, str]] = getattr(_settings_module(given), "CHOOSES", {}) if "workload" in given else {}
    return [f"{group}={option}" for key, (group, option) in table.items() if given.get(key, "null") != "null" and group not in given]


def chosen_experiment(overrides: Sequence[str]) -> list[Choice]:
    """Return the experiment of a command line that starts a run and names no experiment, as a list with one `Choice`, or [].

    The function `choose_experiment(given)` of the workload's module `config` returns its name and the reason, or None. `given`: the
    settings of the command line, {key or group: text after the `=`}."""
    given = typed(overrides)
    choose = getattr(_settings_module(given), "choose_experiment", None)
    chosen = None if "experiment" in given or choose is None else choose(given)
    return [] if chosen is None else [Choice("experiment", *chosen)]


def _settings_module(given: Mapping[str, str]) -> ModuleType | None:
    """Return the module `config` of the workload that the settings `given` name; None if there is none."""
    try:
        return import_here(workload_module(given.get("workload", DEFAULT_WORKLOAD)) + ".config")
    except (ModuleNotFoundError, ValueError):
        return None  # Hydra names the mistake
