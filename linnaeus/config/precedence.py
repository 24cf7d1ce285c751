"""Give the command line precedence over the YAML files, in two cases that Hydra alone does not handle.

1. A mapping whose names the user chooses (`data.sources`, `schedule.phases`, `weighting.weights`): Hydra would merge the mapping of the
   command line with that of the experiment file. Here a mapping in braces on the command line replaces the mapping of the experiment file.
   `schedule.phases.late.lr=2` changes or adds a single value.
2. The command line chooses another option of a group than the experiment file (`lr_scheduler=constant`): Hydra would fail if the new option
   does not have a key that the experiment file sets. Here such keys are left out, with a warning. A key from the command line is never left
   out."""

from __future__ import annotations

import dataclasses
import functools
import logging
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from linnaeus.config.command_line import KEY
from linnaeus.config.schema import Config
from linnaeus.config.setting import entry_type
from linnaeus.errors import ConfigError

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

Variants = Mapping[str, Mapping[str, type]]

log = logging.getLogger("linnaeus")
_BRACES = re.compile(r"\s*[\w.-]+\s*=\s*\{")
# Hydra refuses to add a key of three names. With `++` it adds the key, and `typed_config` checks it. This does not match the value null,
# which would hide an entry with a mistyped name.
_DEEP = re.compile(r"\s*(?!hydra\.)([\w-]+\.[\w-]+)\.([\w-]+\.|[^=]*=(?!\s*null\s*$))")


def as_hydra_takes(overrides: Sequence[str]) -> list[str]:
    """Return the settings of the command line for Hydra. A setting that Hydra would refuse although its key may be valid gets the prefix
    `++`."""
    return [f"++{text.lstrip()}" if _BRACES.match(text) or _may_add(text) else text for text in overrides]


def _may_add(text: str) -> bool:
    deep = _DEEP.match(text)
    return deep is not None and not dataclasses.is_dataclass(_annotation({}, {}, deep[1]))  # all keys of a dataclass exist


def apply_typed(config: DictConfig, variants: Variants, overrides: Sequence[str]) -> None:
    """Apply the two rules of this module to Hydra's composed configuration, in place. `variants` is {group: {option: dataclass}}."""
    from omegaconf import OmegaConf, open_dict

    if empty_given_whole(config, variants, overrides):
        for override in parsed(overrides):  # values that Hydra has set already stay the same
            key, value = override.key_or_group, override.value()
            if ("." in key or isinstance(value, dict)) and not (override.is_delete() or override.is_hydra_override()):
                OmegaConf.update(config, key, value, merge=True, force_add=True)
    choices, named = typed(overrides), []
    for group, name in (key.split(".") for key in left_out(config, variants, overrides)):
        with open_dict(config):
            del config[group][name]
        named.append(f"{group}.{name} ({group}={choices[group]})")
    if named:
        note(f"settings of the experiment that do not apply, left out: {', '.join(named)}")


@functools.cache
def note(line: str) -> None:
    """Log the warning `line`, at most once per process (the function is cached).

    A sweep composes the configuration once for each trial, so without the cache the warning would be repeated."""
    log.warning(line)


def typed(overrides: Sequence[str]) -> dict[str, str]:
    """Return {key or group: text after the `=`} for the settings of the command line."""
    return {match[2]: text[match.end() :].strip() for text in overrides if (match := KEY.match(text))}


# -- mappings that are given whole ---------------------------------------------------------------------------------------------


def empty_given_whole(config: DictConfig, variants: Variants, overrides: Sequence[str]) -> bool:
    """Empty each mapping that the command line gives in braces, so that `apply_typed` can set it without the values of the YAML files.
    Return True if there is such a mapping.

    Only mappings with names chosen by the user are emptied. Mappings inside the braces are included: `schedule.phases.late={data: {...}}`
    empties `schedule.phases.late.data`."""
    from omegaconf import OmegaConf

    braces = [(override.key_or_group, override.value()) for override in parsed([text for text in overrides if _BRACES.match(text)])]
    whole = [name for key, value in braces for name in _mappings_in(key, value, _annotation(config, variants, key))]
    for key in whole:
        OmegaConf.update(config, key, {}, merge=False, force_add=True)
    return bool(whole)


def _mappings_in(key: str, value: Any, annotation: Any) -> Iterator[str]:
    if entry_type(annotation) is not None:
        yield key
    elif isinstance(value, dict) and dataclasses.is_dataclass(annotation):
        hints = typing.get_type_hints(annotation)
        for name, one in value.items():
            yield from _mappings_in(f"{key}.{name}", one, hints.get(name))


def check_mappings(overrides: Sequence[str]) -> None:
    """Raise `ConfigError` if a mapping in braces sets a key that another setting sets too. (Hydra would use the last value.)"""
    seen: dict[str, Any] = {}
    for override in parsed(overrides):
        for key in _keys_in(override.key_or_group, override.value()):
            if key in seen:
                raise ConfigError(f"{key} is given twice, in {seen[key]!r} and {override.input_line!r}; keep one")
            seen[key] = override.input_line


def _keys_in(key: str, value: Any) -> list[str]:
    if not isinstance(value, dict) or not value:
        return [key]
    return [inner for name, one in value.items() for inner in _keys_in(f"{key}.{name}", one)]


def parsed(overrides: Sequence[str]) -> list[Override]:
    """Return the settings of the command line as `Override` objects of Hydra."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_overrides(list(overrides))


def is_entry(config: Mapping[str, Any], variants: Variants, key: str) -> bool:
    """Return True if `key` is an entry of a mapping whose names the user chooses, such as `schedule.phases.late`."""
    return entry_type(_annotation(config, variants, key.rpartition(".")[0])) is not None


def _annotation(config: Mapping[str, Any], variants: Variants, key: str) -> Any:
    """Return the type annotation of `key` in the dataclasses of the configuration; None if the key does not exist there."""
    group, *names = key.split(".")
    found = _class_of(config, variants, group) if group in variants else typing.get_type_hints(Config).get(group)
    for name in names:
        found = typing.get_type_hints(found).get(name) if dataclasses.is_dataclass(found) else entry_type(found)
    return found


# -- keys of another choice ----------------------------------------------------------------------------------------------------


def left_out(config: Mapping[str, Any], variants: Variants, overrides: Sequence[str]) -> list[str]:
    """Return the keys in `config` that exist only in other options of a group than the option that the command line chooses. Keys given on
    the command line are not returned."""
    given = typed(overrides)
    chosen = [group for group, choice in given.items() if group in variants and not choice.startswith("{")]
    keys = [f"{group}.{name}" for group in chosen for name in _of_other_choices(config, variants, group)]
    return [key for key in keys if not any(one == key or one.startswith(f"{key}.") for one in given)]


def _of_other_choices(config: Mapping[str, Any], variants: Variants, group: str) -> list[str]:
    cls = _class_of(config, variants, group)
    if cls is None:
        return []
    own = {field.name for field in dataclasses.fields(cls)}
    others = {field.name for other in variants[group].values() for field in dataclasses.fields(other)}
    return [str(name) for name in config[group] if name in others - own]


def _class_of(config: Mapping[str, Any], variants: Variants, group: str) -> type | None:
    """Return the dataclass of the option of `group` that `config` contains; None if `config` contains none."""
    node = config.get(group)
    return variants[group].get(node["name"]) if isinstance(node, Mapping) and "name" in node else None
