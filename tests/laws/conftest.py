"""Prepare runs in this process: without waiting for the disk, and with threads and logging restored after each module."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from unittest import mock

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def in_process_runs() -> Iterator[None]:
    threads, handlers = torch.get_num_threads(), logging.getLogger("linnaeus").handlers[:]
    with mock.patch("os.fsync", lambda descriptor: None):
        yield
    torch.set_num_threads(threads)
    logging.getLogger("linnaeus").handlers[:] = handlers
