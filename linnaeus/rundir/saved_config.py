"""Write and read saved configurations (config.yaml), and add the keys that a file of an earlier version lacks.

A key that a later version adds must not turn a saved run into another run. So a missing key gets its default value, as composed with the
options of the configuration groups that the file uses."""

import copy
import dataclasses
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from linnaeus.config.choices import AUTO, FOUND_AT_START
from linnaeus.config.schema import WORKLOAD_GROUPS
from linnaeus.errors import ConfigError
from linnaeus.rundir.identity import plain

CONFIG = "config.yaml"
Tree = dict[str, Any]
_UNKNOWN = object()


# -- YAML ----------------------------------------------------------------------------------------------------------------------


def dump_yaml(config: Mapping[str, Any]) -> str:
    """Return a configuration as YAML text that PyYAML and Hydra read as the same values.

    Strings that look like numbers (`1e-3`) are quoted."""
    import yaml

    try:
        return _dump(config, getattr(yaml, "CSafeDumper", yaml.SafeDumper))  # libyaml takes 1 ms instead of 8
    except UnicodeEncodeError:  # a path that is not UTF-8
        return _dump(config, yaml.SafeDumper)


def _dump(config: Mapping[str, Any], base: type) -> str:
    """Return a configuration as YAML text, written by a subclass of `base`, a dumper of PyYAML."""
    import yaml

    Dumper: Any = type("Dumper", (base,), {})

    def represent_text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="'" if _looks_numeric(value) else None)

    Dumper.add_representer(str, represent_text)
    return yaml.dump(plain(config), Dumper=Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=140)


def parse_config(content: bytes) -> Tree | None:
    """Return the configuration in `content`, the bytes of a config.yaml; None if `content` is not a configuration."""
    import yaml

    try:
        tree = yaml.safe_load(content.decode())
    except (ValueError, yaml.YAMLError, RecursionError):  # ValueError: not UTF-8, or a value such as 0x_ or 2026-02-30
        return None
    if not isinstance(tree, dict) or not isinstance(tree.get("workload", {}), dict):
        return None
    return tree if isinstance(tree.get("run"), dict) else None


def _looks_numeric(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


# -- keys of later versions ----------------------------------------------------------------------------------------------------


def fill_defaults(tree: Mapping[str, Any], config_dir: Path | str | None = None) -> tuple[Tree, list[str]]:
    """Return (a copy of the saved configuration `tree` with defaults for the keys that it lacks, the names of these keys).

    A key remains missing if its default is unknown: the group of the key is in a directory that is not given, or the workload of the
    configuration no longer exists."""
    from linnaeus.config.typed_config import config_class, variants_of

    found = copy.deepcopy(dict(tree))
    workload = (found.get("workload") or {}).get("name")
    try:
        variants = variants_of(workload) if isinstance(workload, str) else None
    except ConfigError:
        variants = None
    schema = config_class(workload)
    if variants is None or not any(True for _ in _missing_keys(schema, found, "", variants)):
        return found, []
    defaults = defaults_for(found, config_dir)
    names = []
    for key, node, default in _missing_keys(schema, found, "", variants, defaults):
        name = key.rpartition(".")[2]
        if default is not _UNKNOWN and default != "???":
            node[name] = FOUND_AT_START[key] if default == AUTO and key in FOUND_AT_START else copy.deepcopy(default)
            names.append(key)
    return _derived(found, variants), names


def _derived(tree: Tree, variants: Mapping[str, Any]) -> Tree:
    """Return `tree` with the values that `typed_config` derives from other values. Return `tree` unchanged if this version does not accept
    it."""
    from linnaeus.config.environment import saved_tree
    from linnaeus.config.typed_config import config_class, typed_config

    schema = config_class((tree.get("workload") or {}).get("name"))
    try:
        return _merge(tree, saved_tree(typed_config(_known(schema, tree, "", variants))))
    except ConfigError:
        return tree


def _merge(tree: Tree, new: Tree) -> Tree:
    """Return `new` with the keys added that only `tree` has. These are keys of an earlier version of the program."""
    nested = {key: _merge(tree[key], value) for key, value in new.items() if isinstance(value, dict) and isinstance(tree.get(key), dict)}
    return {**tree, **new, **nested}


def _known(cls: type, node: Tree, prefix: str, variants: Mapping[str, Any]) -> Tree:
    """Return the configuration `node` without the keys that are not in the schema `cls`."""
    found = {}
    for field in dataclasses.fields(cls):
        if field.name in node:
            value, key = node[field.name], f"{prefix}{field.name}"
            nested = _schema_of(cls, field.name, value, key, variants)
            found[field.name] = _known(nested, value, key + ".", variants) if nested is not None else value
    return found


def _schema_of(cls: type, name: str, value: Any, key: str, variants: Mapping[str, Any]) -> type | None:
    """Return the dataclass of `value`, the value of field `name` of `cls`. Return None if it is a plain value, or if `key` is a group
    without the option that `value` names."""
    hint = variants[key].get(value.get("name")) if key in variants and isinstance(value, dict) else typing.get_type_hints(cls)[name]
    return hint if isinstance(value, dict) and isinstance(hint, type) and dataclasses.is_dataclass(hint) else None


def _missing_keys(cls: type, node: Tree, prefix: str, variants: Mapping[str, Any], defaults: Any = None) -> Iterator[tuple[str, Tree, Any]]:
    """Yield (dotted key, mapping that lacks the key, default of the key) for every key of the schema `cls` that the configuration `node`
    lacks.

    The default is `_UNKNOWN` if `defaults` does not contain the key."""
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
            yield from _missing_keys(nested, node[name], key + ".", variants, None if other_choice else default)


def defaults_for(tree: Mapping[str, Any], config_dir: Path | str | None) -> Tree:
    """Return the default configuration, composed with the options of the groups (model, optimizer, ...) in the saved configuration `tree`.

    A group keeps its default option if no option has the saved name."""
    from linnaeus.config.load import compose_tree, group_files

    choices = []
    for group, files in group_files(config_dir).items():
        name = tree[group].get("name") if isinstance(tree.get(group), dict) else None
        same = [file.stem for file in files if name is not None and _group_name(file) == name]
        stem = name if name in same else next(iter(same), None)  # several options may set other values of one name
        if stem is not None:
            choices.append(f"{group}={stem}")
    return compose_tree(choices, config_dir, missing_ok=True)


def _group_name(file: Path) -> str:
    """Return the value of `name` in the YAML file of a group option; without such a value, the name of the file."""
    import yaml

    content = yaml.safe_load(file.read_text())
    return content.get("name", file.stem) if isinstance(content, dict) else file.stem
