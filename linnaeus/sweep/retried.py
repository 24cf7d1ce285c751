"""What a sweep writes on a disk that may be full: the trials that run are worth more than a file that can be written later."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger("linnaeus")


class Retried:
    """`write`, which writes in `directory`, whenever it is called; a disk that refuses it is told of once."""

    def __init__(self, directory: Path, write: Callable[[], None]) -> None:
        self.directory, self._write = directory, write
        self.is_written = True

    def __call__(self) -> bool:
        """Whether it is on the disk."""
        try:
            self._write()
        except OSError as error:
            if self.is_written:
                log.warning(
                    "%s could not be written (%s); it is tried again, and what runs goes on", self.directory, error.strerror or error
                )
            self.is_written = False
        else:
            self.is_written = True
        return self.is_written


def reason(error: OSError) -> str:
    """What the system said, and of which file."""
    where = f" ({error.filename})" if error.filename else ""
    return f"{error.strerror or error}{where}"
