"""A plugin for tests/config/test_every_key.py: it registers an optimizer."""

from linnaeus.config.registry import register
from linnaeus.config.schema_optimization import SGDConfig


@register("optimizer", "registered_by_the_tests", SGDConfig)
def build(config, param_groups):
    raise NotImplementedError
