"""Prepare runs in this process: without waiting for the disk, and with threads and logging restored after each module."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch

from tests import runs


@pytest.fixture(autouse=True, scope="module")
def in_process_runs() -> Iterator[None]:
    threads, handlers = torch.get_num_threads(), logging.getLogger("linnaeus").handlers[:]
    with mock.patch("os.fsync", lambda descriptor: None):
        yield
    torch.set_num_threads(threads)
    logging.getLogger("linnaeus").handlers[:] = handlers


@pytest.fixture(scope="module")
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run of the vectors with the `SETTINGS` of the module, which was never stopped."""
    return runs.run("vectors", tmp_path_factory.mktemp("whole"), *request.module.SETTINGS)
