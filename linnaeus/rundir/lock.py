"""One live process group per run directory: a POSIX record lock plus a note of who holds it.

The record lock keeps a second run on this host out and vanishes with its owner, however that dies (loader workers do not inherit
it). Where a file system does not carry locks between hosts the note decides: boot, process space, pid and start time say whether an
owner on this machine lives, whatever the machine is called by now; one on another machine, or in another container, is alive while it
touches the file (`BEAT` seconds apart), and is taken over after three missed touches.
"""

from __future__ import annotations

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

BEAT = 10.0  # seconds between two touches of the lock file
DYING = 5.0  # seconds a killed owner may take to let go of the lock: its main thread is gone before the last of its files is closed


class RunLock:
    """`acquire()` or ConfigError naming the owner; `release()` when the run ends. A daemon thread touches the file meanwhile."""

    def __init__(self, path: Path, beat: float = BEAT) -> None:
        self.path, self.beat = path, beat
        self._descriptor: int | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._take(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self._stop.clear()
        self._thread = threading.Thread(target=self._touch, name="run lock", daemon=True)
        self._thread.start()

    def _take(self, descriptor: int) -> None:
        deadline = time.monotonic() + DYING
        while not _locked(descriptor):
            owner = _note(descriptor)
            if owner is None or alive_here(owner) is not False or time.monotonic() > deadline:
                raise self._refusal(owner)
            time.sleep(0.01)
        owner = _note(descriptor)  # once more: it may have changed hands before the lock was ours
        me = identity()
        if owner is not None and any(owner.get(key) != me[key] for key in me):
            alive = alive_here(owner)
            if alive or (alive is None and self._touched_again()):
                raise self._refusal(owner)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({**me, "since": time.strftime("%Y-%m-%d %H:%M:%S")}).encode(), 0)
        os.fsync(descriptor)

    def _touched_again(self) -> bool:
        """Watch the file for three beats; times are compared with each other only, so clocks of hosts need not agree."""
        before = os.stat(self.path).st_mtime_ns
        deadline = time.monotonic() + 3 * self.beat
        while time.monotonic() < deadline:
            time.sleep(self.beat / 10)
            if os.stat(self.path).st_mtime_ns != before:
                return True
        return False

    def _refusal(self, owner: dict[str, Any] | None) -> ConfigError:
        who = f"process {owner['pid']} on {owner['host']} since {owner['since']}" if owner else "another process"
        return ConfigError(f"run.name: {self.path.parent} is in use by {who}; stop that run or choose another run.name")

    def _touch(self) -> None:
        while not self._stop.wait(self.beat):
            with contextlib.suppress(OSError):  # the disk may be back by the next beat
                os.utime(self.path)

    def release(self) -> None:
        """Leave an empty file: nobody holds the run."""
        if self._descriptor is None:
            return
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        with contextlib.suppress(OSError):  # on a disk that refuses it, the note names a process that is no more
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
        self._descriptor = None


def _locked(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _note(descriptor: int) -> dict[str, Any] | None:
    """What the lock file says, read through the descriptor that will lock it: closing any other one would drop the lock."""
    try:
        content = json.loads(os.pread(descriptor, 4096, 0))
    except ValueError:
        return None
    wanted = ("host", "boot", "pid", "start", "since")
    return content if isinstance(content, dict) and all(key in content for key in wanted) else None
