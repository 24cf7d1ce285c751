"""Precedence of the command line over the files of `conf/`, where Hydra alone would merge the two or fail.

A mapping with names of the user's own (`data.sources`, `schedule.phases`, `weighting.weights`) that is given in braces replaces the
experiment's mapping. `schedule.phases.late.lr=2` changes or adds one value.

If the command line chooses another option of a group than the experiment (`lr_scheduler=constant`), the experiment's keys for its own
option that the new one does not have are left out and logged. A key from the command line is never left out.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from linnaeus.config.command_line import KEY
from linnaeus.config.schema import Config

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

Variants = Mapping[str, Mapping[str, type]]

log = logging.getLogger("linnaeus")
_BRACES = re.compile(r"\s*[\w.-]+\s*=\s*\{")
# Three names deep Hydra adds nothing that is not there yet. What may be there is ours to check, but for a null: it would leave no trace
# of an entry whose name is mistyped.
_DEEP = re.compile(r"\s*(?!hydra\.)([\w-]+\.[\w-]+)\.([\w-]+\.|[^=]*=(?!\s*null\s*$))")


def as_hydra_takes(overrides: Sequence[str]) -> list[str]:
    """Return the overrides, marked `++` where Hydra would refuse to add a key that may be valid."""
    return [f"++{text.lstrip()}" if _BRACES.match(text) or _may_add(text) else text for text in overrides]


def _may_add(text: str) -> bool:
    deep = _DEEP.match(text)
    return deep is not None and not dataclasses.is_dataclass(_annotation({}, {}, deep[1]))  # whose keys are all there


def apply_typed(config: DictConfig, variants: Variants, overrides: Sequence[str]) -> None:
    """Apply the precedence rules to Hydra's composition, in place. `variants`: group -> name -> dataclass."""
    whole = given_whole(config, variants, overrides)
    if whole:
        empty(config, whole)
        apply_values(config, overrides)
    surplus = left_out(config, variants, overrides)
    for key in surplus:
        _take_away(config, key)
    if surplus:
        choices = typed(overrides)
        named = [f"{key} ({key.partition('.')[0]}={choices[key.partition('.')[0]]})" for key in surplus]
        note(f"settings of the experiment that do not apply, left out: {', '.join(named)}")


def same_for_hydra(config: DictConfig, variants: Variants, overrides: Sequence[str]) -> list[str]:
    """Return overrides with which Hydra alone composes the result of `apply_typed`."""
    emptied = [f"++{key}=null" for key in given_whole(config, variants, overrides)]
    taken = [text for key in left_out(config, variants, overrides) for text in (f"++{key}=0", f"~{key}")]  # ~ of a null is refused
    return [*emptied, *as_hydra_takes(overrides), *taken]


@functools.cache
def note(line: str) -> None:
    """Log a line once per process: a sweep composes each of its trials."""
    log.warning(line)


def typed(overrides: Sequence[str]) -> dict[str, str]:
    """Return key or group -> the text after its `=`."""
    found = [(match[2], text[match.end() :].strip()) for text in overrides if (match := KEY.match(text))]
    return dict(found)


# -- mappings that are given whole ---------------------------------------------------------------------------------------------


def given_whole(config: Mapping[str, Any], variants: Variants, overrides: Sequence[str]) -> list[str]:
    """Return the mappings with names of the user's own that overrides give in braces, `schedule.phases.late.data` of
    `schedule.phases.late={data: {...}}` included."""
    braces = parsed([text for text in overrides if _BRACES.match(text)])
    return [
        key
        for override in braces
        for key in _mappings_in(override.key_or_group, override.value(), _annotation(config, variants, override.key_or_group))
    ]


def _mappings_in(key: str, value: Any, annotation: Any) -> Iterator[str]:
    if _of_entries(annotation) is not None:
        yield key
    elif isinstance(value, dict) and dataclasses.is_dataclass(annotation):
        hints = typing.get_type_hints(annotation)
        for name, one in value.items():
            yield from _mappings_in(f"{key}.{name}", one, hints.get(name))


def empty(config: DictConfig, mappings: Sequence[str]) -> None:
    from omegaconf import OmegaConf

    for key in mappings:
        OmegaConf.update(config, key, {}, merge=False, force_add=True)


def apply_values(config: DictConfig, overrides: Sequence[str]) -> None:
    """Set every value of the overrides, in order. Values that Hydra has set already stay the same, except in emptied mappings."""
    from omegaconf import OmegaConf

    for override in parsed(overrides):
        value = override.value()
        if ("." in override.key_or_group or isinstance(value, dict)) and not (override.is_delete() or override.is_hydra_override()):
            OmegaConf.update(config, override.key_or_group, value, merge=True, force_add=True)


def parsed(overrides: Sequence[str]) -> list[Override]:
    """Return overrides parsed by Hydra's grammar."""
    if not overrides:
        return []
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_overrides(list(overrides))


def is_entry(config: Mapping[str, Any], variants: Variants, key: str) -> bool:
    """Return True if a key names an entry of a mapping with names of the user's own."""
    return _of_entries(_annotation(config, variants, key.rpartition(".")[0])) is not None


def _annotation(config: Mapping[str, Any], variants: Variants, key: str) -> Any:
    """Return the annotation of a key in the schema, None if it does not have one."""
    group, *names = key.split(".")
    found = _class_of(config, variants, group) if group in variants else typing.get_type_hints(Config).get(group)
    for name in names:
        found = typing.get_type_hints(found).get(name) if dataclasses.is_dataclass(found) else _of_entries(found)
    return found


def _of_entries(annotation: Any) -> Any:
    """Return the type of a mapping's entries, as in `dict[str, PhaseConfig] | None`; None if it is not a mapping."""
    is_union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    either = typing.get_args(annotation) if is_union else (annotation,)
    return next((typing.get_args(one)[1] for one in either if typing.get_origin(one) is dict), None)


# -- keys of another choice ----------------------------------------------------------------------------------------------------


def left_out(config: Mapping[str, Any], variants: Variants, overrides: Sequence[str]) -> list[str]:
    """Return keys of other choices, in groups chosen on the command line, that were not given on the command line themselves."""
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
    """Return the dataclass of a group's choice, None if it does not exist."""
    node = config.get(group)
    return variants[group].get(node["name"]) if isinstance(node, Mapping) and "name" in node else None


def _take_away(config: DictConfig, key: str) -> None:
    from omegaconf import open_dict

    group, _, name = key.partition(".")
    with open_dict(config):
        del config[group][name]
