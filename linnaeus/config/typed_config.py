"""Convert a plain mapping to the dataclasses of `schema`, and check it: unknown keys, types, limits.

A mistake raises a `ConfigError` of one line that names the key and the fix."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
import operator
import os
import types
import typing
from collections.abc import Iterable, Sequence
from typing import Any, cast

from linnaeus.config.choices import with_placeholders
from linnaeus.config.contracts import check_config_class
from linnaeus.config.foreign_names import foreign_hint
from linnaeus.config.monitors import with_monitors
from linnaeus.config.registry import import_here, import_plugins, registered_parts, workload_module
from linnaeus.config.schema import VARIANTS, WORKLOAD_GROUPS, Config
from linnaeus.config.setting import allowed_values, setting
from linnaeus.durations import Duration
from linnaeus.errors import ConfigError

# limit in `setting` -> (its comparison, its words in an error)
_LIMITS = {
    "low": (operator.ge, "at least"),
    "high": (operator.le, "at most"),
    "above": (operator.gt, "more than"),
    "below": (operator.lt, "less than"),
}


def variants_of(workload: str) -> dict[str, dict[str, type]]:
    """Return {group: {option: dataclass}} for a workload. It contains the groups of the program, the groups of the workload, and parts of
    imported plugins.

    Raise `ConfigError` if the workload cannot be imported or does not define its groups."""
    try:
        module = import_here(workload_module(workload) + ".config")
    except ModuleNotFoundError as error:
        raise ConfigError(f"workload.name is {workload!r}, which cannot be imported ({error})") from None
    if not hasattr(module, "SCHEMAS"):
        raise ConfigError(f"workload.name: {module.__name__} does not define SCHEMAS: group -> name -> class of its keys")
    variants: dict[str, dict[str, type]] = {}
    for group, classes in {**VARIANTS, **module.SCHEMAS}.items():
        for cls in classes.values():
            check_config_class(cls)
        added = {name: part.config for name, part in registered_parts(group).items() if part.config is not None}
        if taken := sorted(classes.keys() & added):
            raise ConfigError(f"plugins: {group}={taken[0]} is a name of the {workload} workload or of the program; register another name")
        variants[group] = {**classes, **added}
    return variants


def config_class(workload: Any) -> type[Config]:
    """Return the dataclass of the configuration of a workload: `Config` with an added field for each entry of `KEYS` in the workload's
    module `config`.

    Return `Config` itself if the workload cannot be imported."""
    try:
        module = import_here(workload_module(workload) + ".config") if isinstance(workload, str) else None
    except ModuleNotFoundError:
        module = None
    return _class_with(tuple(getattr(module, "KEYS", {}).items()))


@functools.cache
def _class_with(keys: tuple[tuple[str, type], ...]) -> type[Config]:
    for name, cls in keys:
        check_config_class(cls)
        if name in {field.name for field in dataclasses.fields(Config)}:
            raise ConfigError(f"workload.name: {cls.__module__}.KEYS has {name}, which is a group of every workload; use another name")
    fields = [(name, cls, setting(f"keys of the workload: {name}")) for name, cls in keys]
    return dataclasses.make_dataclass("Config", fields, bases=(Config,), frozen=True) if keys else Config


def typed_config(tree: Any) -> Config:
    """Return the typed configuration of a plain mapping. Values of environment variables replace texts such as `${oc.env:TOKEN}`.

    A `~` at the start of `run.root` is replaced by the home directory.

    Raise `ConfigError` for an unknown, missing, mistyped or out-of-range key, and for an environment variable that is not set. The message
    does not contain values of environment variables."""
    from linnaeus.config.environment import hide, resolve, values_to_hide

    tree, texts, _ = resolve(tree)
    try:
        config = _checked(tree)
    except ConfigError as error:
        raise ConfigError(hide(str(error), values_to_hide(tree, texts))) from None
    object.__setattr__(config, "from_environment", texts)  # not a field: a field is a key
    return config


def _checked(tree: dict[str, Any]) -> Config:
    """Return the typed configuration of a plain mapping without interpolations. Raise `ConfigError` as `typed_config` does."""
    import_plugins(tree.get("plugins") or [])
    tree = with_placeholders(tree)
    workload = (tree.get("workload") or {}).get("name")
    if not isinstance(workload, str):
        raise ConfigError("workload.name is missing; name one, as in workload=taxonomy")
    variants = variants_of(workload)
    for group in WORKLOAD_GROUPS:
        if group not in variants and tree.get(group) is not None:
            raise ConfigError(f"{group}: the {workload} workload does not have this group; set {group}=null")
    config = with_monitors(_build(config_class(workload), tree, "", variants))
    _check_combinations(config)
    experiment = config.data.name if config.run.experiment is None else config.run.experiment
    run = dataclasses.replace(config.run, experiment=experiment, root=os.path.expanduser(config.run.root))
    return dataclasses.replace(config, run=run)


def typed_group(group: str, tree: Any, workload: str) -> Any:
    """Convert one group of a workload, such as `model`, to its dataclass. `tree`: plain mapping with all keys of the group.

    Raise `ConfigError` as `typed_config` does."""
    variants = variants_of(workload)
    return _build(cast(type, _schema_at(group, None, tree, variants)), tree, group, variants)


def _check_combinations(config: Config) -> None:
    """Raise `ConfigError` for `run.init_*` or `logger.mlflow_uri` without the setting that they need, for `run.init_from` together with
    `run.resume=PATH`, and for an empty list or a repeated name in `logger.report_sections`."""
    run, sections = config.run, config.logger.report_sections
    if run.init_from is not None and run.resume not in ("auto", "never"):
        raise ConfigError(
            f"run.init_from={run.init_from} and run.resume={run.resume} exclude each other: the first loads only weights into a new run, "
            "the second continues a run; give one"
        )
    if run.init_checkpoint is not None and run.init_from is None:
        raise ConfigError(f"run.init_checkpoint={run.init_checkpoint} has no effect without run.init_from; give that, or leave it out")
    for key, names in (("run.init_allow", run.init_allow), ("run.init_skip", run.init_skip)):
        if names and run.init_from is None:
            raise ConfigError(f"{key}=[{','.join(names)}] has no effect without run.init_from; give that, or leave it out")
    if config.logger.mlflow_uri is not None and not config.logger.mlflow:
        raise ConfigError("logger.mlflow_uri has no effect without logger.mlflow=true; give that, or leave it out")
    if not sections:
        raise ConfigError("logger.report_sections is []; name at least one section, or set schedule.report=[] for no reports")
    twice = next((name for name in sections if sections.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"logger.report_sections names {twice} twice; name it once")


def _schema_at(key: str, annotation: Any, tree: Any, variants: dict[str, dict[str, type]]) -> type | None:
    """Return the dataclass for the value `tree` of the key `key`; None if the value is not a mapping of fields.

    If `key` is a group, the dataclass is that of the chosen option; otherwise it is `annotation`. Raise `ConfigError` for an unknown
    option."""
    if key in variants:
        name = tree.get("name") if isinstance(tree, dict) else None
        if not isinstance(name, str) or name not in variants[key]:
            from linnaeus.config.messages import source_of_option

            raise ConfigError(
                f"{key}.name is {name!r}; it must be one of {', '.join(sorted(variants[key]))}; {source_of_option(key, name)}"
            )
        return variants[key][name]
    return annotation if dataclasses.is_dataclass(annotation) and isinstance(annotation, type) else None


def _build(cls: type, tree: Any, prefix: str, variants: dict[str, dict[str, type]]) -> Any:
    if not isinstance(tree, dict):
        raise ConfigError(f"{prefix or 'config'} is {tree!r}; it must be a mapping of keys")
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for name in tree:
        if name not in fields:
            raise ConfigError(f"unknown key {_join(prefix, str(name))}; {_hint(str(name), prefix, fields, tree, variants)}")
    values: dict[str, Any] = {}
    for name, f in fields.items():
        key = _join(prefix, name)
        if prefix == "" and name in WORKLOAD_GROUPS and name not in variants:
            values[name] = None
            continue
        if name not in tree and f.default_factory is not dataclasses.MISSING:
            continue
        if name not in tree:
            raise ConfigError(f"{key} is missing ({f.metadata['meaning']})")
        value = tree[name]
        nested = _schema_at(key, hints[name], value, variants)
        values[name] = _build(nested, value, key, variants) if nested else _value(key, value, hints[name], f.metadata)
    return cls(**values)


def _hint(name: str, prefix: str, fields: Iterable[str], tree: dict, variants: dict[str, dict[str, type]]) -> str:
    """Return a hint for the unknown key `prefix.name`: the option of the group that has this key, the name in this program of a setting
    known from another program, or a similar key."""
    if (prefix, name) == ("run", "from"):
        return "run.from must be given on the command line, not in a file"
    if (prefix, name) == ("", "experiment"):
        return "the first line of an experiment file must be `# @package _global_`"
    owners = [v for v, cls in variants.get(prefix, {}).items() if name in {f.name for f in dataclasses.fields(cls)}]
    if owners and not set(fields) <= set(tree):  # these are the keys of another option, of which only `name` was changed
        return f"it belongs to {prefix}={' or '.join(owners)}, but {prefix}.name is {tree['name']}; choose with {prefix}={tree['name']}"
    if owners:
        return f"{prefix}={tree['name']} does not have it; leave it out, or choose {' or '.join(f'{prefix}={owner}' for owner in owners)}"
    if "." not in prefix and (hint := foreign_hint(name)):
        return hint
    close = difflib.get_close_matches(name, fields, 1)
    return f"did you mean {_join(prefix, close[0])}?" if close else f"the keys there are {', '.join(fields)}"


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _value(key: str, value: Any, annotation: Any, meta: Any) -> Any:
    if meta["duration"]:
        _refuse_number(key, value, meta["duration"])
    value = str(value) if meta["step"] and type(value) is int else value
    value = value == "true" if value in ("true", "false") and bool in typing.get_args(annotation) else value
    choices, allowed = meta["choices"], ", ".join(allowed_values(meta["choices"], annotation))
    if choices and _is_other_type(value, annotation, choices):
        annotation, choices = type(value), ()
    elif choices and (isinstance(value, (bool, int, float)) or (value is None and type(None) not in typing.get_args(annotation))):
        raise ConfigError(f"{key} is {json.dumps(value)}; it must be one of {allowed}")
    value = _coerce(key, value, annotation)
    for one in value if isinstance(value, list) and choices else [value]:
        if choices and one is not None and one not in choices:
            raise ConfigError(f"{key} is {one!r}; it must be one of {allowed}")
    parts = {f".{name}": one for name, one in value.items()} if isinstance(value, dict) else {"": value}
    parts = {f"[{i}]": one for i, one in enumerate(value)} if isinstance(value, list) else parts
    for part, one in parts.items():
        _check_limits(key + part, one, meta)
    if meta["duration"] and value is not None:
        for text in value if isinstance(value, list) else [value]:
            duration = Duration.parse(text, key)
            if meta["duration"] == "length" and duration.unit not in ("steps", "epochs"):
                raise ConfigError(f"{key} is {text}; it must be in epochs or steps, such as 20epochs or 5000steps")
            if meta["duration"] == "length" and duration.amount == 0:
                raise ConfigError(f"{key} is {text}; it must be at least 1 step")
            if meta["duration"] == "update" and duration.is_time:
                raise ConfigError(f"{key} is {text}; a time cannot be converted to steps, use steps, epochs or %")
            if meta["duration"] == "clock" and (not duration.is_time or duration.amount == 0):
                raise ConfigError(f"{key} is {text}; it must be a wall time: 90s, 30min or 23h")
    return value


def _refuse_number(key: str, value: Any, kind: str) -> None:
    """Raise `ConfigError` if `value`, or an entry of the list `value`, is a number: a duration of the `kind` needs a unit."""
    for part, one in ((f"[{i}]", one) for i, one in enumerate(value)) if isinstance(value, list) else [("", value)]:
        if isinstance(one, (int, float)) and not isinstance(one, bool):
            n = one if 0 <= one < math.inf else 5
            units = {"clock": f"{n}s, {n}min or {n}h", "length": f"{n}steps or {n}epochs"}.get(kind, f"{n}steps, {n}epochs or {n}%")
            raise ConfigError(f"{key}{part} is {one}; it needs a unit: {units}")


def _is_other_type(value: Any, annotation: Any, choices: Sequence[str]) -> bool:
    """Return True if `value` is an integer or a bool that a field with `choices` may have: an integer for the type `str | int`, False for
    `str | bool`, and True for `str | bool` if "true" is a choice."""
    alternatives = typing.get_args(annotation)
    is_bool = (value is False or (value is True and "true" in choices)) and bool in alternatives
    return is_bool or (type(value) is int and int in alternatives)


def _check_limits(key: str, value: Any, meta: Any) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return
    if not math.isfinite(value):
        raise ConfigError(f"{key} is {value}; it must be finite")
    for name, (is_within, words) in _LIMITS.items():
        if meta[name] is not None and not is_within(value, meta[name]):
            raise ConfigError(f"{key} is {value}; it must be {words} {meta[name]}")


def _coerce(key: str, value: Any, annotation: Any) -> Any:
    """Return `value` converted to the type `annotation`. Raise `ConfigError`, naming `key`, if it cannot be converted.

    Conversions: int to float, and a single string to a list of one string. An entry of a mapping whose value is null is removed; null in
    place of a mapping gives an empty mapping."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in args:
            return None
        return _coerce(key, value, next(a for a in args if a is not type(None)))
    if origin is list:
        if isinstance(value, (str, int, float)) and not isinstance(value, bool) and args[0] is str:
            value = [value]
        if not isinstance(value, list):
            raise ConfigError(f"{key} is {value!r}; it must be a list")
        return [_coerce(f"{key}[{i}]", v, args[0]) for i, v in enumerate(value)]
    if origin is dict:
        if not isinstance(value, dict) and value is not None:
            raise ConfigError(f"{key} is {value!r}; it must be a mapping")
        return {str(k): _coerce(f"{key}.{k}", v, args[1]) for k, v in (value or {}).items() if v is not None}
    if annotation is Any:
        return value
    if dataclasses.is_dataclass(annotation):
        return _build(cast(type, annotation), value, key, {})
    if annotation is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, annotation) or (isinstance(value, bool) and annotation is not bool):
        wanted = {"str": "a text", "int": "an integer", "float": "a number", "bool": "true or false"}[annotation.__name__]
        raise ConfigError(f"{key} is {value!r}; it must be {wanted}")
    return value
