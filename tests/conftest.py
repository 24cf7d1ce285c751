"""For all tests: one thread per process, for two of them share the machine's cores; and a logger that pytest can hear."""

import logging
import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported, also in the processes that tests start


@pytest.fixture(autouse=True)
def audible_logger(monkeypatch):
    """A run in this process leaves the logger `linnaeus` with its own handlers and without propagation."""
    monkeypatch.setattr(logging.getLogger("linnaeus"), "propagate", True)
