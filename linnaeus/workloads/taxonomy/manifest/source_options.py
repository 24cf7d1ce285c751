"""Add and check the arguments `SOURCE [KEY=VALUE ...]` of commands that read a data source of photographs."""

import argparse

from linnaeus.config.load import compose
from linnaeus.errors import ConfigError, shorten
from linnaeus.workloads.taxonomy.config import ManifestConfig
from linnaeus.workloads.taxonomy.manifest.records import READERS


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add the argument SOURCE (the format of the data source) to a parser."""
    parser.add_argument("source", choices=list(READERS), metavar="SOURCE", help=f"format of the source: {', '.join(READERS)}")


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the arguments KEY=VALUE (settings of the data source) to a parser."""
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of the source, such as data.path=photos.csv")


def check_settings(options: argparse.Namespace) -> None:
    """Raise `ConfigError` for a setting that is not a key of `data`."""
    if foreign := [text for text in options.overrides if not text.startswith("data.")]:
        raise ConfigError(f"{shorten(foreign[0])} has no effect here; give settings of the source, data.KEY=VALUE")


def source_config(options: argparse.Namespace) -> ManifestConfig:
    """Return the configuration `data` of the command line. Raise `ConfigError` for a setting that the data source does not have."""
    data = compose([f"data={options.source}", *options.overrides]).data
    assert isinstance(data, ManifestConfig)
    return data
