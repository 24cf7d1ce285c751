"""What is wrong with a checkpoint, in one line that names the file; what the disk itself says is kept apart from it (`disk.py`)."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from linnaeus.files import is_absent, system_error


class CheckpointDamaged(ValueError):
    """A checkpoint is not what was written; `reason` names the file and what is wrong with it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


class CheckpointNewer(CheckpointDamaged):
    """Whole, but of a format that only a later version of this program reads."""


@contextlib.contextmanager
def reading(path: Path, name: str) -> Iterator[None]:
    """Around reading the file `name` of the checkpoint `path`: CheckpointDamaged when it is not there, OSError that names it when the
    system cannot read it now, in whatever words a loader says so. What is wrong with its content passes as it is."""
    try:
        yield
    except CheckpointDamaged:
        raise
    except Exception as error:
        trouble = system_error(error, path / name)
        if trouble is None:
            raise
        if not is_absent(trouble):
            raise trouble from None
        what = "is missing" if trouble.errno == errno.ENOENT else f"cannot be read ({trouble.strerror})"
        raise CheckpointDamaged(path, f"{name} {what}") from None
