"""Configurations that an earlier version of the program saved: complete once more, with the keys that came later.

A key that is new in the program must not turn a run of yesterday into another one, so what a saved configuration lacks counts as
the default for the same choices of groups.
"""

from __future__ import annotations

import copy
import dataclasses
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from linnaeus.config.schema import WORKLOAD_GROUPS, Config
from linnaeus.errors import ConfigError

Tree = dict[str, Any]
_UNKNOWN = object()


def filled(tree: Mapping[str, Any], config_dir: Path | str | None = None) -> tuple[Tree, list[str]]:
    """A saved configuration with every key that it lacks at its default for the same choices of groups; and the names of those.

    What cannot be known (the groups of a folder that is not given, a workload that is no more) stays as it is."""
    from linnaeus.config.load import variants_of

    found = copy.deepcopy(dict(tree))
    workload = (found.get("workload") or {}).get("name")
    try:
        variants = variants_of(workload) if isinstance(workload, str) else None
    except ConfigError:
        variants = None
    if variants is None or not any(True for _ in _lacking(Config, found, "", variants)):
        return found, []
    defaults = _defaults_for(found, config_dir)
    names = []
    for key, node, default in _lacking(Config, found, "", variants, defaults):
        name = key.rpartition(".")[2]
        if default is not _UNKNOWN and default != "???":
            node[name] = copy.deepcopy(default)
            names.append(key)
    return _settled(found, variants), names


def _settled(tree: Tree, variants: Mapping[str, Any]) -> Tree:
    """With what follows from other values, as in every saved configuration; unchanged where it is none for this version."""
    from linnaeus.config.load import typed_config

    try:
        return _over(tree, dataclasses.asdict(typed_config(_known(Config, tree, "", variants))))
    except ConfigError:
        return tree


def _over(tree: Tree, settled: Tree) -> Tree:
    """The values of `settled`, and what is in `tree` alone: keys that the program no longer has."""
    nested = {key: _over(tree[key], value) for key, value in settled.items() if isinstance(value, dict) and isinstance(tree.get(key), dict)}
    return {**tree, **settled, **nested}


def _known(cls: type, node: Tree, prefix: str, variants: Mapping[str, Any]) -> Tree:
    """A tree without the keys that are not in the schema."""
    found = {}
    for field in dataclasses.fields(cls):
        if field.name in node:
            value, key = node[field.name], f"{prefix}{field.name}"
            nested = _schema_of(cls, field.name, value, key, variants)
            found[field.name] = _known(nested, value, key + ".", variants) if nested is not None else value
    return found


def _schema_of(cls: type, name: str, value: Any, key: str, variants: Mapping[str, Any]) -> type | None:
    """The dataclass that a group of keys fits; None for a plain value, and for a choice that there is not."""
    hint = variants[key].get(value.get("name")) if key in variants and isinstance(value, dict) else typing.get_type_hints(cls)[name]
    return hint if isinstance(value, dict) and isinstance(hint, type) and dataclasses.is_dataclass(hint) else None


def _lacking(cls: type, node: Tree, prefix: str, variants: Mapping[str, Any], defaults: Any = None) -> Iterator[tuple[str, Tree, Any]]:
    """(key, the mapping that lacks it, its default or `_UNKNOWN`) of every key of the schema that is not in a tree."""
    for field in dataclasses.fields(cls):
        name, key = field.name, f"{prefix}{field.name}"
        if not prefix and name in WORKLOAD_GROUPS and name not in variants:
            continue
        default = defaults.get(name, _UNKNOWN) if isinstance(defaults, dict) else _UNKNOWN
        if name not in node:
            yield key, node, default
            continue
        nested = _schema_of(cls, name, node[name], key, variants)
        if nested is not None:
            other_choice = key in variants and isinstance(default, dict) and default.get("name") != node[name].get("name")
            yield from _lacking(nested, node[name], key + ".", variants, None if other_choice else default)


def _defaults_for(tree: Mapping[str, Any], config_dir: Path | str | None) -> Tree:
    """What composition gives for the choices of groups that a saved configuration was made with."""
    from linnaeus.config.load import compose_tree, group_files

    choices = []
    for group, files in group_files(config_dir).items():
        name = tree[group].get("name") if isinstance(tree.get(group), dict) else None
        stem = next((file.stem for file in files if name is not None and _named(file) == name), None)
        if stem is not None:
            choices.append(f"{group}={stem}")
    return compose_tree(choices, config_dir, missing_ok=True)


def _named(file: Path) -> str:
    """The `name` that a group's file gives."""
    import yaml

    content = yaml.safe_load(file.read_text())
    return content.get("name", file.stem) if isinstance(content, dict) else file.stem
