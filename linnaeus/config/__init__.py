"""Typed configuration: schema, composition, checks, help. Nothing in here imports torch."""

from linnaeus.config.errors import ConfigError, user_errors
from linnaeus.config.load import CONF, compose, typed_config
from linnaeus.config.schema import Config

__all__ = ["CONF", "Config", "ConfigError", "compose", "typed_config", "user_errors"]
