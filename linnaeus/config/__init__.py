"""Read the configuration: typed schema, composition of YAML files and command line, checks, help. This package does not import torch."""

from linnaeus.config.load import CONF, compose
from linnaeus.config.schema import Config
from linnaeus.config.typed_config import typed_config

__all__ = ["CONF", "Config", "compose", "typed_config"]
