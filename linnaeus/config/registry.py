"""Registry of parts that a user's own package (a plugin) adds: models, heads, losses, data sources, augmentations, optimizers, metrics.

`plugins: [mylab]` imports the package before anything is built. The package registers each part with a name, the class of its configuration
and the function that builds the part:

    @register("optimizer", "lion", LionConfig)
    def build(config, param_groups): ...

`docs/extending.md` shows a part of every group and the arguments of its builder. A workload is named by its dotted module
(`workload.name=mylab.words`) and needs no registration."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from linnaeus.config.contracts import check_arguments, check_config_class, class_name
from linnaeus.errors import ConfigError

_TAXONOMY = "linnaeus.workloads.taxonomy"
# group -> class that a configuration extends ("": a metric has none), and the arguments of a builder
GROUPS = {
    "model": (f"{_TAXONOMY}.config.ModelConfig", ("config", "image_size", "ranks", "components")),
    "head": (f"{_TAXONOMY}.config.HeadConfig", ("config", "width", "tree")),
    "loss": (f"{_TAXONOMY}.loss_config.LossConfig", ("config", "tree", "counts")),
    "data": (f"{_TAXONOMY}.config.TaxonomyDataConfig", ("config",)),
    "augment": (f"{_TAXONOMY}.augment_config.AugmentConfig", ("config", "image_size")),
    "optimizer": ("linnaeus.config.schema_optimization.OptimizerConfig", ("config", "param_groups")),
    "metric": ("", ("tree", "device")),
}
Builder = TypeVar("Builder", bound=Callable[..., Any])


class Part(NamedTuple):
    """A registered part. `config`: dataclass of its configuration keys, None for a metric. `build`: function that builds the part.

    `direction`: "min" or "max" for a metric, "" for other parts."""

    config: type | None
    build: Callable[..., Any]
    direction: str = ""


_parts: dict[str, dict[str, Part]] = {group: {} for group in GROUPS}


def register(group: str, name: str, config: type | None = None, *, direction: str = "") -> Callable[[Builder], Builder]:
    """Return a decorator that registers a function as the builder of the option `name` of `group`.

    `config` must be a frozen dataclass with `setting` fields that extends the base class of the group. A metric has no `config`, but needs
    a `direction`, "min" or "max". Raise `ConfigError` for an unknown group, a missing class or direction, an unsuitable class, a builder
    with other arguments than the group requires, and a name that another module has registered."""
    if group not in GROUPS:
        raise ConfigError(f"plugins: {group!r} is not a group that can be extended; choose one of {', '.join(GROUPS)}")
    if group == "metric" and direction not in ("min", "max"):
        raise ConfigError(f"plugins: the metric {name} must state direction='min' or direction='max'")
    if group != "metric" and config is None:
        raise ConfigError(f"plugins: {group}={name} must name the class of its configuration: register({group!r}, {name!r}, MyConfig)")
    base, arguments = GROUPS[group]
    if config is not None:
        check_config_class(config)
        if base not in map(class_name, config.__mro__):
            raise ConfigError(f"plugins: {group}={name}: {class_name(config)} must extend {base}")

    def decorate(build: Builder) -> Builder:
        check_arguments(build, arguments, f"plugins: the builder of {group}={name}")
        known = _parts[group].get(name)
        if known is not None and known.build.__module__ != build.__module__:
            raise ConfigError(f"plugins: {group}={name} is registered by {known.build.__module__} and {build.__module__}; rename one")
        _parts[group][name] = Part(config, build, direction)
        return build

    return decorate


def registered(group: str, name: str) -> Part | None:
    """Return the registered part `name` of `group`, or None if there is none."""
    return _parts[group].get(name)


def registered_parts(group: str) -> dict[str, Part]:
    """Return {name: part} of all registered parts of `group`; empty for a group that plugins cannot extend."""
    return dict(_parts.get(group, {}))


def workload_module(name: str) -> str:
    """Return the dotted package of a workload. A name without a dot is a workload of this program, in `linnaeus.workloads`."""
    return name if "." in name else f"linnaeus.workloads.{name}"


def import_plugins(names: Sequence[str]) -> None:
    """Import the packages that the key `plugins` lists. Raise `ConfigError` if a package cannot be imported."""
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"plugins is {names}; it must be a list of packages, as in plugins=[my_package]")
    for name in names:
        try:
            import_here(name)
        except ModuleNotFoundError as error:
            raise ConfigError(f"plugins: {name} cannot be imported ({error}); install it, or start in its parent folder") from None


def import_here(name: str) -> ModuleType:
    """Import a module. Also search the working directory, because with `python FOLDER/main.py` Python does not search there.

    Raise `ModuleNotFoundError` also for an empty name and for one that begins with a dot."""
    if not name or name.startswith("."):
        raise ModuleNotFoundError(f"{name!r} is not the name of a module", name=name)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}.") or os.getcwd() in sys.path:
            raise
        sys.path.append(os.getcwd())
        return importlib.import_module(name)
