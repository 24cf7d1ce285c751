"""The fixture `make_config` of the tests of the schedule."""

from tests.schedule.conftest import make_config

__all__ = ["make_config"]
