"""Make a finished run and its bundle, also for the tests of the service."""

from tests.workloads.taxonomy.trained.conftest import finished

__all__ = ["finished"]
