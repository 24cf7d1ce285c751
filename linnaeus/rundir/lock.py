"""Lock a run directory against a second run, by a POSIX record lock and a note in the lock file that names the owner.

The record lock excludes a second process on this host and ends with its owner, even after a crash (loader workers do not inherit it). Some
file systems do not share locks between hosts; then the note decides. If the owner is on this machine, the boot id, process namespace, pid
and start time in the note show if it is alive. An owner on another machine or in another container touches the lock file every
`TOUCH_INTERVAL` seconds while it is alive; if three touches are missed, another process may take the lock."""

import contextlib
import fcntl
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

from linnaeus.distributed.processes import alive_here, identity
from linnaeus.errors import ConfigError
from linnaeus.files import json_object, no_follow

TOUCH_INTERVAL = 10.0  # seconds
STALE = 300.0  # seconds without a touch after which an owner on another machine counts as ended in a report, since clocks may differ
EXIT_TIMEOUT = 5.0  # seconds until a killed owner has released the lock: its main thread ends before its files are closed

_held: set[tuple[int, int]] = set()  # device and inode of each lock file that this process has locked


class RunLock:
    """Lock on a run directory. Call `acquire()` at the start of a run and `release()` at its end.

    Between these calls a daemon thread touches the lock file. `kind`: word for messages, "run", or "sweep" for the directory of a sweep."""

    def __init__(self, path: Path, touch_interval: float = TOUCH_INTERVAL, kind: str = "run") -> None:
        self.path, self.touch_interval, self.kind = path, touch_interval, kind
        self._descriptor: int | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        """Acquire the lock. If another live process has locked the directory, raise `ConfigError` with the name of this owner."""
        descriptor = no_follow(self.path, os.O_RDWR | os.O_CREAT)
        try:
            self._claim(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        _held.add(_file_of(os.fstat(descriptor)))
        self._stop.clear()
        self._thread = threading.Thread(target=self._touch, name="run lock", daemon=True)
        self._thread.start()

    def _claim(self, descriptor: int) -> None:
        """Lock the file and write this process as owner into its note. Raise `ConfigError` if another live process has the lock."""
        deadline = time.monotonic() + EXIT_TIMEOUT
        while not _try_lock(descriptor):
            owner = _read_owner(descriptor)
            if owner is None or alive_here(owner) is not False or time.monotonic() > deadline:
                raise self._in_use(owner)
            time.sleep(0.01)
        owner = _read_owner(descriptor)  # again: the owner may have changed before the lock was acquired
        own = identity()
        if owner is not None and any(owner.get(key) != own[key] for key in own):
            alive = alive_here(owner)
            if alive or (alive is None and self._touched_again()):
                raise self._in_use(owner)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({**own, "since": time.strftime("%Y-%m-%d %H:%M:%S")}).encode(), 0)
        os.fsync(descriptor)

    def _touched_again(self) -> bool:
        """Return True if the lock file is touched within three intervals, which means that its owner is alive.

        Only modification times of the file are compared with each other, because the clocks of two hosts may differ."""
        before = os.stat(self.path).st_mtime_ns
        deadline = time.monotonic() + 3 * self.touch_interval
        while time.monotonic() < deadline:
            time.sleep(self.touch_interval / 10)
            if os.stat(self.path).st_mtime_ns != before:
                return True
        return False

    def _in_use(self, owner: dict[str, Any] | None) -> ConfigError:
        holder = f"process {owner['pid']} on {owner['host']} since {owner['since']}" if owner else "another process"
        hint = f"stop that {self.kind} or choose another {self.kind}.name"
        return ConfigError(f"{self.kind}.name: {self.path.parent} is in use by {holder}; {hint}")

    def _touch(self) -> None:
        while not self._stop.wait(self.touch_interval):
            with contextlib.suppress(OSError):  # the disk may work again at the next touch
                os.utime(self.path)

    def release(self) -> None:
        """Release the lock and empty the lock file. Do nothing if this process does not have the lock."""
        if self._descriptor is None:
            return
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        with contextlib.suppress(OSError):  # if this fails, the note names a process that has ended, so the lock is free
            os.ftruncate(self._descriptor, 0)
        _held.discard(_file_of(os.fstat(self._descriptor)))
        os.close(self._descriptor)
        self._descriptor = None


def owner_has_ended(path: Path) -> bool:
    """Return True if the process that last had the lock file `path` has ended; False if it is alive, or if the file cannot be read. If
    the owner is on another machine or unknown, it counts as ended after `STALE` seconds without a touch."""
    try:
        return not _alive(path)[1]
    except OSError:
        return False


def has_owner(path: Path) -> bool:
    """Return True if the lock file `path` names an owner that is alive, in the sense of `owner_has_ended`; False if the lock was released,
    or if the file cannot be read."""
    try:
        named, alive = _alive(path)
    except OSError:
        return False
    return named and alive


def _alive(path: Path) -> tuple[bool, bool]:
    """Return (the lock file `path` names an owner, the last owner is alive). Raise `OSError` if the file cannot be read."""
    if _file_of(os.stat(path)) in _held:
        return True, True  # do not open the file: to close it would release the lock of this process
    with open(path, "rb") as file:
        owner, touched = _read_owner(file.fileno()), os.fstat(file.fileno()).st_mtime
    alive = alive_here(owner) if owner is not None else None
    return owner is not None, alive if alive is not None else time.time() - touched <= STALE


def _file_of(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _try_lock(descriptor: int) -> bool:
    """Try to acquire the record lock without waiting. Return True on success."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _read_owner(descriptor: int) -> dict[str, Any] | None:
    """Return the note about the owner in the lock file; None if the note is empty or damaged.

    The file is read through the locked descriptor, because closing another descriptor of the file would release the lock."""
    content = json_object(os.pread(descriptor, 4096, 0))
    required = ("host", "boot", "pid", "start", "since")
    return content if content is not None and all(key in content for key in required) else None
