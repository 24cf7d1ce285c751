"""Set one thread per process, because several test processes share the cores; keep log messages visible to pytest."""

import logging
import os

import pytest

from tests import quick_hydra

# Files that take more than 10 s on two cores, the longest first. They start before the others, so that no worker of pytest-xdist runs one
# of them while the others have nothing left (`make test` has --no-loadscope-reorder for it).
LONGEST = (
    "laws/test_factorisation.py",
    "laws/test_continuation.py",
    "trained/test_exported_forms.py",
    "laws/test_kills.py",
    "sweep/test_sweeps.py",
    "launch/test_local.py",
    "laws/test_stopping.py",
    "e2e/test_launches.py",
    "laws/test_watchdog.py",
    "weighting/test_runs.py",
    "laws/test_position.py",
    "tests/test_extending.py",
    "trained/test_place_prior.py",
    "laws/test_sharded_runs.py",
    "dictionary/trained/test_edit.py",
    "optim/test_growth_runs.py",
    "language/test_nanecho.py",
    "train/test_activation_checkpointing.py",
    "laws/test_world_size.py",
    "commands/test_commands.py",
    "laws/test_reduction_in_bf16.py",
    "benchmarks/test_every_benchmark.py",
)

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported, also in the processes that tests start
quick_hydra.install()


def pytest_collection_modifyitems(items):
    """Put the tests of `LONGEST` first; keep the order otherwise."""

    def place(item):
        return next((number for number, name in enumerate(LONGEST) if item.path.as_posix().endswith(name)), len(LONGEST))

    items.sort(key=place)


@pytest.fixture(autouse=True)
def audible_logger(monkeypatch):
    """Restore the propagation of the logger `linnaeus`, which a run in this process switches off."""
    monkeypatch.setattr(logging.getLogger("linnaeus"), "propagate", True)
