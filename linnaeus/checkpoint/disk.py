"""Not there, or not to be read now: two answers of a disk that must never be taken for each other.

A file that is not there will not come back, and a checkpoint without it is damaged. Any other error of the system (a network disk that
is away, a descriptor or memory too few) says nothing of what is stored: whoever took it for damage would train weeks again. Such a
reading is tried again, and then the launch is refused.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from linnaeus.config.errors import ConfigError

log = logging.getLogger("linnaeus")

T = TypeVar("T")
PAUSES = (0.5, 1.5, 4.0)  # seconds before each further try: a moment's trouble passes, for a longer one nobody should wait unasked
ABSENT = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR))  # nothing readable has that name, and waiting brings none


class Unreadable(ConfigError, OSError):
    """The disk cannot be read now; one line that says what to do. Also an OSError: what one process alone meets, others must be told."""


def is_absent(error: OSError) -> bool:
    """Whether there is no such file, as opposed to one that cannot be read now."""
    return error.errno in ABSENT


def is_there(path: Path, kind: Callable[[int], bool] = lambda mode: True) -> bool:
    """Whether there is such a file, of that kind (`stat.S_ISDIR`). OSError when the disk does not say, which `Path.exists` of some
    versions of Python takes for no."""
    try:
        return kind(os.stat(path).st_mode)
    except OSError as error:
        if is_absent(error):
            return False
        raise


def is_directory(path: Path) -> bool:
    """Like `Path.is_dir`, but OSError when the disk does not say."""
    return is_there(path, stat.S_ISDIR)


def system_error(error: BaseException, path: Path) -> OSError | None:
    """What the system said, as an OSError that names the file; None when it is the content that was found wrong. The loaders of torch and
    safetensors tell it in words alone, in exceptions of several kinds (`RuntimeError: unable to mmap ...: Cannot allocate memory (12)`)."""
    code = error.errno if isinstance(error, OSError) else None
    if code is None:
        text = str(error)
        code = next((int(number) for number in re.findall(r"\b\d{1,3}\b", text) if int(number) and os.strerror(int(number)) in text), None)
    if code is None and isinstance(error, FileNotFoundError):
        code = errno.ENOENT
    if code is None and isinstance(error, MemoryError):
        code = errno.ENOMEM
    if code is not None:
        return OSError(code, os.strerror(code), str(path))
    return error if isinstance(error, OSError) else None


def tried_again(read: Callable[[], T]) -> T:
    """What `read` returns, which may raise OSError a few times first. The last one is raised; that of a file that is not there at once."""
    for pause in PAUSES:
        try:
            return read()
        except OSError as error:
            if is_absent(error):
                raise
            log.warning("%s; reading again in %.1f s", error, pause)
        time.sleep(pause)
    return read()


def read_or_refuse(read: Callable[[], T]) -> T:
    """`tried_again`, with `Unreadable` in the end: nobody goes on from something else because a disk is away."""
    try:
        return tried_again(read)
    except OSError as error:
        what = error.filename or "a checkpoint"
        raise Unreadable(
            f"{what} cannot be read ({error.strerror or error}), which does not mean that it is damaged: nothing was skipped or deleted; "
            "see to that disk and start again, or move that checkpoint away to go on from an older one"
        ) from None
