"""Typed configuration: schema, composition, checks, help. Nothing here imports torch."""

from linnaeus.config.load import CONF, compose, typed_config
from linnaeus.config.messages import user_errors
from linnaeus.config.schema import Config
from linnaeus.errors import ConfigError

__all__ = ["CONF", "Config", "ConfigError", "compose", "typed_config", "user_errors"]
