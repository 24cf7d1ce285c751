"""Build the data source of a run, as `data` in its configuration chooses it: manifest, store, generated data, or a plugin."""

import importlib
from collections.abc import Callable
from typing import Any

from linnaeus.config.contracts import check_members
from linnaeus.config.registry import registered
from linnaeus.config.schema import Config
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy import manifest
from linnaeus.workloads.taxonomy.config import RecordsConfig, StoreConfig
from linnaeus.workloads.taxonomy.observations import Source
from linnaeus.workloads.taxonomy.plugin_checks import checked_source
from linnaeus.workloads.taxonomy.store import store_source


def build_data_source(config: Config, test: bool = False) -> tuple[Source, Callable[[Any], dict[str, float]] | None]:
    """Return the data source of a configuration, and a function that returns the best possible accuracies; None in place of the function if
    they are unknown.

    `test`: True to use the test rows in place of the validation rows. Raise `ConfigError` if there are no test rows."""
    records = isinstance(config.data, RecordsConfig)
    if test and not records:
        raise ConfigError(f"--split=test: data={config.data.name} has no test rows; use validation")
    part = registered("data", config.data.name)
    if part is not None:
        source = check_members(part.build(config.data), Source, f"data.name={config.data.name}: the builder returns")
        source = checked_source(source)
        if config.data.ranks is not None and tuple(config.data.ranks) != source.tree.ranks:
            raise ConfigError(f"data.ranks is {config.data.ranks}, but data={config.data.name} has the ranks {list(source.tree.ranks)}")
        return source, None
    if config.prepared is not None and not test:
        return config.prepared, None
    if isinstance(config.data, StoreConfig):
        return store_source.build_source(config.data, test), None
    if records:
        return manifest.build_source(config.data, test), None
    module = importlib.import_module(f"linnaeus.workloads.taxonomy.{config.data.name}")
    return module.build_source(config.data), getattr(module, "ceilings", None)
