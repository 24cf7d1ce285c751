"""Context managers that log an error in writing a file of the run, so that the run continues."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger("linnaeus")


@contextlib.contextmanager
def log_write_errors(path: Path) -> Iterator[None]:
    """Return a context manager that logs an `OSError` of its block instead of raising it. path: the file written, for the message."""
    try:
        yield
    except OSError as error:
        log.error("%s could not be written (%s)", path, error.strerror or error)


@contextlib.contextmanager
def log_page_errors(path: Path) -> Iterator[None]:
    """Return a context manager that logs any exception of its block instead of raising it, with its traceback in train.log. path: the file
    or folder written, for the message.

    For pages and examples that are made after summary.json is written: an error in them must not mark a finished run as failed."""
    try:
        with log_write_errors(path):
            yield
    except Exception as error:
        log.error("%s is not complete (%s: %s); the results of the run are not affected", path, type(error).__name__, error)
        log.debug("traceback", exc_info=True)
