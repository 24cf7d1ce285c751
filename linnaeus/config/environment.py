"""Read values of environment variables in a configuration, such as `${oc.env:TOKEN}`, at each start, and never save or print them.

A composed configuration contains the text `${oc.env:TOKEN}`. `typed_config` replaces this text by the value of the variable and records the
text in `Config.from_environment`. Everything that is saved or compared (config.yaml, checkpoints, the hash of the run, W&B) uses
`saved_tree`, which contains the text again. In log lines, errors and tracebacks, which a sweep or a SLURM job writes to files, `hide`
replaces the value by the text."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import operator
import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from linnaeus.errors import ConfigError

if TYPE_CHECKING:
    from linnaeus.config.schema import Config

Path = tuple[Any, ...]  # keys and list indices
HIDDEN_LENGTH = 6  # characters; shorter values are not hidden in log lines, where they could be part of any word
_VARIABLE = re.compile(r"\$\{oc\.env:\s*['\"]?([^,}'\"\s]+)")

_read: set[str] = set()  # names of the variables that were read since `_reading` began
_hidden: dict[str, str] = {}  # value -> the text that replaces it in messages


def _environment_variable(name: str, *default: Any) -> Any:
    _read.add(name)
    return oc.env(name, *default)


def plain_tree(composed: DictConfig, missing_ok: bool = False) -> dict[str, Any]:
    """Return Hydra's composed configuration as plain values. A value that is read from the environment remains the text `${oc.env:...}`.

    Raise OmegaConf's error for an interpolation that cannot be resolved, and for a required value that is not set unless `missing_ok` is
    True."""
    tree: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=not missing_ok)
    raw: Any = OmegaConf.to_container(composed, resolve=False)
    for path, text in _interpolations(raw):
        with _reading() as names:
            _resolved(composed, path)
            if names:
                _set(tree, path, text)
    return tree


def resolve(tree: Mapping[str, Any]) -> tuple[dict[str, Any], dict[Path, str], dict[str, str]]:
    """Replace the interpolations in a configuration by their values. Return (the new configuration, the texts, the environment variables).

    The texts map the path of a key to its interpolation, such as `${oc.env:TOKEN}`. The environment variables map the name of each variable
    that was read to its value. Raise `ConfigError` if a variable is not set."""
    texts = dict(_interpolations(tree))
    if not texts:
        return dict(tree), {}, {}
    composed, found = OmegaConf.create(dict(tree)), copy.deepcopy(dict(tree))
    with _reading() as names:
        for path, text in texts.items():
            try:
                _set(found, path, _resolved(composed, path))
            except OmegaConfBaseException as error:
                line = " ".join(str(error).split())[:160]
                raise ConfigError(f"{'.'.join(map(str, path))} is {text}, which cannot be read ({line}); set that variable") from None
        return found, texts, {name: os.environ[name] for name in names if name in os.environ}


def saved_tree(config: Config) -> dict[str, Any]:
    """Return the configuration as plain values for saving and comparing.

    Each value from the environment is replaced by its text `${oc.env:...}`."""
    tree = dataclasses.asdict(config)
    for path, text in config.from_environment.items():
        _set(tree, path, text)
    return tree


def hidden_values(config: Config) -> dict[str, str]:
    """Return {value: text that replaces it} for the values from the environment that log lines and errors must not contain, the longest
    first.

    The values of configuration keys and the values of the environment variables in them are hidden. A value that is part of the path
    `run.root` is not hidden, because messages name files in `run.root`."""
    return values_to_hide(dataclasses.asdict(config), config.from_environment)


def values_to_hide(tree: Mapping[str, Any], texts: Mapping[Path, str]) -> dict[str, str]:
    """Return what `hidden_values` returns for a configuration as plain values. `texts`: {path of a key: text such as `${oc.env:TOKEN}`}."""
    found: dict[str, str] = {}
    for path, text in texts.items():
        found |= {os.environ[name]: f"${{oc.env:{name}}}" for name in _VARIABLE.findall(text) if name in os.environ}
        with contextlib.suppress(LookupError, TypeError):
            value = functools.reduce(operator.getitem, path, tree)
            if isinstance(value, str):
                found[value] = text
    run = tree.get("run")
    root = os.path.abspath(str(run.get("root", ""))) if isinstance(run, Mapping) else ""
    return {value: found[value] for value in sorted(found, key=len, reverse=True) if len(value) >= HIDDEN_LENGTH and value not in root}


def start_hiding(config: Config) -> dict[str, str]:
    """From now on, let `hide` replace the values that `config` reads from the environment. Return `hidden_values(config)`."""
    _hidden.clear()
    _hidden.update(hidden_values(config))
    return dict(_hidden)


def hide(text: str, values: Mapping[str, str] | None = None) -> str:
    """Return `text` in which each value that the configuration reads from the environment is replaced by its `${oc.env:...}` text.

    `values`: result of `hidden_values`; None: that of `start_hiding`."""
    for value, shown in (_hidden if values is None else values).items():
        text = text.replace(value, shown)
    return text


def _interpolations(node: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Yield (path, text) of each string in nested mappings and lists that contains an interpolation `${...}`."""
    if isinstance(node, str) and "${" in node:
        yield path, node
    items = node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list) else ()
    for key, item in items:
        yield from _interpolations(item, (*path, key))


@contextlib.contextmanager
def _reading() -> Iterator[set[str]]:
    """Yield a set that collects the names of the environment variables that OmegaConf reads in the block."""
    OmegaConf.register_new_resolver("oc.env", _environment_variable, replace=True)
    _read.clear()
    try:
        yield _read
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


def _resolved(composed: DictConfig, path: Path) -> Any:
    value = functools.reduce(operator.getitem, path, composed)
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _set(tree: Any, path: Path, value: Any) -> None:
    """Set the value at `path` in nested mappings and lists. Do nothing if a parent no longer exists, such as a list that became null."""
    with contextlib.suppress(LookupError, TypeError):
        functools.reduce(operator.getitem, path[:-1], tree)[path[-1]] = value
