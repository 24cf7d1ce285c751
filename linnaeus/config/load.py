"""From YAML and overrides to the typed `Config`: every key known, every value of its type and within its limits.

`compose_tree` runs Hydra's composition without its application; `typed_config` turns its plain mapping into the dataclasses of
`schema`, with one line per mistake that names the key and what would be right; `compose` does both.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import math
import types
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from linnaeus.config.metric_directions import direction, workload_module
from linnaeus.config.precedence import apply_typed, as_hydra_takes, left_out, same_for_hydra
from linnaeus.config.registry import config_classes, import_plugins
from linnaeus.config.schema import VARIANTS, WORKLOAD_GROUPS, Config, RunConfig
from linnaeus.config.schema_optimization import PlateauConfig
from linnaeus.durations import Duration
from linnaeus.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

CONF = (Path(__file__).parents[1] / "conf").resolve()  # a link to conf/ at the top level; a folder in an installed package


def compose(overrides: Sequence[str] = (), config_dir: Path | str | None = None, missing_ok: bool = False) -> Config:
    """The typed config of `compose_tree`."""
    return typed_config(compose_tree(overrides, config_dir, missing_ok))


def compose_tree(overrides: Sequence[str] = (), config_dir: Path | str | None = None, missing_ok: bool = False) -> dict[str, Any]:
    """Return `conf/config.yaml` with Hydra overrides: a resolved tree of plain values, not yet checked by `typed_config`. `config_dir`
    adds a folder of further groups. With `missing_ok` a required key that is not given has the value `???`."""
    from omegaconf import OmegaConf

    _check_folder(config_dir)
    composed, variants = _composed(overrides, config_dir)
    apply_typed(composed, variants, overrides)
    return cast(dict[str, Any], OmegaConf.to_container(composed, resolve=True, throw_on_missing=not missing_ok))


def compose_for_hydra(overrides: Sequence[str], config_dir: Path | str | None = None) -> list[str]:
    """Overrides with which Hydra's own application shows what `compose_tree` composes of these."""
    _check_folder(config_dir)
    return same_for_hydra(*_composed(overrides, config_dir), overrides)


def keys_left_out(overrides: Sequence[str], config_dir: Path | str | None = None) -> list[str]:
    """The keys of an experiment's file that choices among these overrides have no use for."""
    return left_out(*_composed(overrides, config_dir), overrides)


def _check_folder(config_dir: Path | str | None) -> None:
    if config_dir and not Path(config_dir).is_dir():
        raise ConfigError(f"--config-dir: {config_dir} is not there; give a folder with groups of configuration, as conf/ has")


def _composed(overrides: Sequence[str], config_dir: Path | str | None) -> tuple[DictConfig, dict[str, dict[str, type]]]:
    """(what Hydra makes of `conf/` and the overrides; the choices of each group that its workload has)."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from omegaconf import OmegaConf

    extra = [f"hydra.searchpath=[file://{Path(config_dir).resolve()}]"] if config_dir else []
    with initialize_config_dir(str(CONF), version_base="1.3"):
        composed = hydra_compose("config", [*as_hydra_takes(overrides), *extra])
    import_plugins(OmegaConf.select(composed, "plugins") or [])
    workload = OmegaConf.select(composed, "workload.name")
    return composed, variants_of(workload) if isinstance(workload, str) else VARIANTS


def group_files(config_dir: Path | str | None = None) -> dict[str, list[Path]]:
    """group -> its YAML files, of `conf/` and of the folder that joins it."""
    found: dict[str, list[Path]] = {}
    for root in (CONF, Path(config_dir)) if config_dir else (CONF,):
        for folder in sorted(path for path in root.iterdir() if path.is_dir()):
            found.setdefault(folder.name, []).extend(sorted(folder.glob("*.yaml")))
    return found


def variants_of(workload: str) -> dict[str, dict[str, type]]:
    """group -> name -> dataclass, for the program's groups and those of the workload."""
    try:
        module = importlib.import_module(workload_module(workload) + ".config")
    except ModuleNotFoundError as error:
        raise ConfigError(f"workload.name: no workload {workload!r} ({error})") from None
    known, added = {**VARIANTS, **module.SCHEMAS}, config_classes()
    return {group: {**classes, **added.get(group, {})} for group, classes in known.items()}


def typed_config(tree: Any) -> Config:
    """The typed config of a plain mapping. Raises `ConfigError` for an unknown, missing, mistyped or out-of-range key."""
    import_plugins(tree.get("plugins") or [])
    workload = (tree.get("workload") or {}).get("name")
    if not isinstance(workload, str):
        raise ConfigError("workload.name is missing; name one, as in workload=taxonomy")
    variants = variants_of(workload)
    for group in WORKLOAD_GROUPS:
        if group not in variants and tree.get(group) is not None:
            raise ConfigError(f"{group}: the {workload} workload has no such group; set {group}=null")
    config = settled(_build(Config, tree, "", variants))
    check_beginning(config.run)
    check_sections(config.logger.report_sections)
    return config


def check_sections(names: Sequence[str]) -> None:
    """Raises `ConfigError` for a report of nothing, or of something twice."""
    if not names:
        raise ConfigError("logger.report_sections is [], which leaves nothing to report; schedule.report=[] is for no reports")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"logger.report_sections names {twice} twice; name it once")


def check_beginning(run: RunConfig) -> None:
    """Raises `ConfigError` for two beginnings of one run, and for an allowance without effect."""
    if run.init_from is not None and run.resume not in ("auto", "never"):
        raise ConfigError(
            f"run.init_from={run.init_from} and run.resume={run.resume} are two beginnings: the first takes the weights alone into a "
            "new run, the second continues with everything; give one"
        )
    for key, names in (("run.init_allow", run.init_allow), ("run.init_skip", run.init_skip)):
        if names and run.init_from is None:
            raise ConfigError(f"{key}=[{','.join(names)}] has no effect without run.init_from; give that, or leave it out")


def settled(config: Config) -> Config:
    """The config with what follows from its other values: names of monitored metrics, their directions, the experiment's name."""
    config = follow_the_average(config)
    schedule, stop = config.schedule, config.schedule.early_stop
    workload = config.workload.name
    stop = dataclasses.replace(stop, mode=direction(stop.mode, stop.monitor, workload, "schedule.early_stop.mode"))
    best = direction(schedule.best_mode, schedule.best_monitor, workload, "schedule.best_mode")
    schedule = dataclasses.replace(schedule, best_mode=best, early_stop=stop)
    scheduler = config.lr_scheduler
    if isinstance(scheduler, PlateauConfig):
        scheduler = dataclasses.replace(scheduler, mode=direction(scheduler.mode, scheduler.monitor, workload, "lr_scheduler.mode"))
    run = dataclasses.replace(config.run, experiment=config.data.name if config.run.experiment is None else config.run.experiment)
    return dataclasses.replace(config, schedule=schedule, lr_scheduler=scheduler, run=run)


def follow_the_average(config: Config) -> Config:
    """The config with monitored metrics named after the weights that are validated: `val/loss` is `val_ema/loss` where a moving
    average is kept and validated. Anything else that names the wrong weights is refused later, with all metrics known."""
    if config.trainer.ema_decay is None or not config.trainer.ema_validate:
        return config

    def named(group: Any, key: str) -> Any:
        metric = getattr(group, key)
        plain = metric.startswith("val") and not metric.startswith("val_ema")
        return dataclasses.replace(group, **{key: metric.replace("val", "val_ema", 1)}) if plain else group

    schedule = dataclasses.replace(named(config.schedule, "best_monitor"), early_stop=named(config.schedule.early_stop, "monitor"))
    scheduler = named(config.lr_scheduler, "monitor") if hasattr(config.lr_scheduler, "monitor") else config.lr_scheduler
    return dataclasses.replace(config, schedule=schedule, lr_scheduler=scheduler)


def schema_at(key: str, annotation: Any, tree: Any, variants: dict[str, dict[str, type]]) -> type | None:
    """The dataclass that a key's value must fit, None for a plain value."""
    if key in variants:
        name = tree.get("name") if isinstance(tree, dict) else None
        if name not in variants[key]:
            hint = "a package of your own can add one (plugins, docs/extending.md)"
            raise ConfigError(f"{key}.name is {name!r}; it must be one of {', '.join(sorted(variants[key]))}; {hint}")
        return variants[key][name]
    return annotation if dataclasses.is_dataclass(annotation) and isinstance(annotation, type) else None


def entry_schema(annotation: Any) -> type | None:
    """The dataclass of a mapping's entries, as in `dict[str, PhaseConfig] | None`; None for a mapping of plain values and all else."""
    for one in (annotation, *typing.get_args(annotation)):
        if typing.get_origin(one) is dict and dataclasses.is_dataclass(entry := typing.get_args(one)[1]):
            return cast(type, entry)
    return None


def _build(cls: type, tree: Any, prefix: str, variants: dict[str, dict[str, type]]) -> Any:
    if not isinstance(tree, dict):
        raise ConfigError(f"{prefix or 'config'} is {tree!r}; it takes a group of keys")
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
        nested = schema_at(key, hints[name], value, variants)
        values[name] = _build(nested, value, key, variants) if nested else _value(key, value, hints[name], f.metadata)
    return cls(**values)


def _hint(name: str, prefix: str, fields: Iterable[str], tree: dict, variants: dict[str, dict[str, type]]) -> str:
    """What may have been meant: a key of another choice of the group, or one that is written alike."""
    if (prefix, name) == ("run", "from"):
        return "run.from is given on the command line, not in a file"
    owners = [v for v, cls in variants.get(prefix, {}).items() if name in {f.name for f in dataclasses.fields(cls)}]
    if owners and not set(fields) <= set(tree):  # as the file of another choice leaves it, of which but the name was changed
        return f"it belongs to {prefix}={' or '.join(owners)}, and {prefix}.name is {tree['name']}; choose with {prefix}={tree['name']}"
    if owners:
        return f"{prefix}={tree['name']} has none; leave it out, or choose {' or '.join(f'{prefix}={owner}' for owner in owners)}"
    close = difflib.get_close_matches(name, fields, 1)
    return f"did you mean {_join(prefix, close[0])}?" if close else f"known there: {', '.join(fields)}"


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _value(key: str, value: Any, annotation: Any, meta: Any) -> Any:
    if meta["duration"] and isinstance(value, (int, float)):
        units = f"{value}s, {value}min or {value}h" if meta["duration"] == "clock" else f"{value}steps, {value}epochs or {value}%"
        raise ConfigError(f"{key} is {value}; it needs a unit: {units}")
    value = _coerce(key, value, annotation)
    for one in value if isinstance(value, list) and meta["choices"] else [value]:
        if meta["choices"] and one not in meta["choices"]:
            raise ConfigError(f"{key} is {one!r}; it takes one of {', '.join(meta['choices'])}")
    for name, one in value.items() if isinstance(value, dict) else [("", value)]:
        _check_limits(f"{key}.{name}" if name else key, one, meta)
    if meta["duration"] and value is not None:
        for text in value if isinstance(value, list) else [value]:
            duration = Duration.parse(text, key)
            if meta["duration"] == "update" and duration.is_time:
                raise ConfigError(f"{key} is {text}; a time cannot be converted to steps, use steps, epochs or %")
            if meta["duration"] == "clock" and (not duration.is_time or duration.amount == 0):
                raise ConfigError(f"{key} is {text}; it takes a time of the clock: 90s, 30min or 23h")
    return value


def _check_limits(key: str, value: Any, meta: Any) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return
    if not math.isfinite(value):
        raise ConfigError(f"{key} is {value}; it takes a finite number")
    if meta["low"] is not None and value < meta["low"]:
        raise ConfigError(f"{key} is {value}; it must be at least {meta['low']}")
    if meta["high"] is not None and value > meta["high"]:
        raise ConfigError(f"{key} is {value}; it must be at most {meta['high']}")
    if meta["above"] is not None and value <= meta["above"]:
        raise ConfigError(f"{key} is {value}; it must be more than {meta['above']}")
    if meta["below"] is not None and value >= meta["below"]:
        raise ConfigError(f"{key} is {value}; it must be less than {meta['below']}")


def _coerce(key: str, value: Any, annotation: Any) -> Any:
    """`value` as its annotation has it; only int -> float and a lone text -> list of one are converted, and null takes a mapping's entry
    away, or all of them."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in args:
            return None
        return _coerce(key, value, next(a for a in args if a is not type(None)))
    if origin is list:
        if isinstance(value, (str, int, float)) and not isinstance(value, bool) and args[0] is str:
            value = [value]
        if not isinstance(value, list):
            raise ConfigError(f"{key} is {value!r}; it takes a list")
        return [_coerce(f"{key}[{i}]", v, args[0]) for i, v in enumerate(value)]
    if origin is dict:
        if not isinstance(value, dict) and value is not None:
            raise ConfigError(f"{key} is {value!r}; it takes a mapping")
        return {str(k): _coerce(f"{key}.{k}", v, args[1]) for k, v in (value or {}).items() if v is not None}
    if annotation is Any:
        return value
    if dataclasses.is_dataclass(annotation):
        return _build(cast(type, annotation), value, key, {})
    if annotation is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, annotation) or (isinstance(value, bool) and annotation is not bool):
        wanted = {"str": "a text", "int": "a whole number", "float": "a number", "bool": "true or false"}[annotation.__name__]
        raise ConfigError(f"{key} is {value!r}; it takes {wanted}")
    return value
