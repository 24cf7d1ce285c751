"""Typed configuration: schema, composition, checks, help. Nothing here imports torch."""

from linnaeus.config.load import CONF, compose, typed_config
from linnaeus.config.schema import Config

__all__ = ["CONF", "Config", "compose", "typed_config"]
