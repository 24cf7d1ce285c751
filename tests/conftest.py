"""Set one thread per process, because several test processes share the cores; keep log messages visible to pytest."""

from __future__ import annotations

import gc
import logging
import os
import sys

import pytest

from tests import quick_hydra

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported, also in the processes that tests start
quick_hydra.install()
gc.set_threshold(20_000, 20, 20)  # 3 % of the CPU time


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    use_one_thread()


def use_one_thread() -> None:
    """Set one thread for torch. A command of an earlier test may have set as many as there are cores: on two busy cores a simulation took
    220 s in place of 13."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Set one thread after the fixtures of the module, which may run commands."""
    use_one_thread()


@pytest.fixture(autouse=True)
def audible_logger(monkeypatch):
    """Restore the propagation of the logger `linnaeus`, which a run in this process switches off."""
    monkeypatch.setattr(logging.getLogger("linnaeus"), "propagate", True)
