"""Typed configuration: schema, composition, checks, help. Nothing in here imports torch."""

from linnaeus.config.errors import ConfigError
from linnaeus.config.load import compose, typed_config
from linnaeus.config.schema import Config

__all__ = ["Config", "ConfigError", "compose", "typed_config"]
