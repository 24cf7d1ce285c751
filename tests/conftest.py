"""Set one thread per process, because several test processes share the cores; keep log messages visible to pytest."""

import gc
import logging
import os

import pytest

from tests import quick_hydra

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported, also in the processes that tests start
quick_hydra.install()
gc.set_threshold(20_000, 20, 20)  # 3 % of the CPU time


@pytest.fixture(autouse=True)
def audible_logger(monkeypatch):
    """Restore the propagation of the logger `linnaeus`, which a run in this process switches off."""
    monkeypatch.setattr(logging.getLogger("linnaeus"), "propagate", True)
