"""Read the configuration: typed schema, composition of YAML files and command line, checks, help. This package does not import torch."""

from linnaeus.config.load import CONF, compose, typed_config
from linnaeus.config.schema import Config

__all__ = ["CONF", "Config", "compose", "typed_config"]
