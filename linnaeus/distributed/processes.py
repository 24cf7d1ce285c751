"""Functions for operating-system processes: identity, test for being alive, running time, CPU time, and ending with the parent process."""

import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

POLL_INTERVAL = 1.0  # seconds between two readings of a `RunningClock`
KEPT = 2**28  # bytes of freed memory that a process keeps, and of the largest block that it reuses
SUSPENDED_AFTER = 3.0  # seconds without a reading after which the process counts as suspended


def die_with_launcher() -> None:
    """Make this process end when its launcher ends. If the launcher has already ended, exit with status 1.

    A process whose parent is process 1 has lost its launcher, except in a container, where torchrun itself may be process 1."""
    parent = os.getppid()
    if parent == 1 and "TORCHELASTIC_RUN_ID" in os.environ and os.path.exists("/proc/1/cmdline"):
        with open("/proc/1/cmdline", "rb") as file:
            first = file.read()
        if b"torch" not in first and b"launch" not in first:
            print("error: the launcher of this process has ended", file=sys.stderr, flush=True)
            os._exit(1)
    die_with_parent(parent)


def die_with_parent(parent: int) -> None:
    """Let Linux kill this process (SIGKILL) when the process `parent` ends. On other systems do nothing.

    Under torchrun every rank has its own session, so killing the agent or its process group would leave the ranks training."""
    if sys.platform != "linux":
        return
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before prctl
        os.kill(os.getpid(), signal.SIGKILL)


def keep_freed_memory() -> None:
    """Make the C library of Linux (glibc) reuse freed memory of this process instead of returning it to the system. Elsewhere do nothing.

    By default glibc returns each block of more than a few MiB, and the next use costs a page fault for every 4 kB: normalising a batch of
    64 photographs takes 15 ms instead of 4 ms. Up to `KEPT` bytes of free memory are kept."""
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 (an AttributeError with another C library)
        M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
        library.mallopt(M_MMAP_THRESHOLD, KEPT)
        library.mallopt(M_TRIM_THRESHOLD, KEPT)


def write_torchrun_error(line: str) -> None:
    """Write `line`, the reason why this process fails, to the file that torchrun reads. Do nothing without torchrun.

    When a process has failed, torchrun prints about forty lines of its own, and the last of them is the reason of the first failure."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        error = {"message": {"message": line, "extraInfo": {"timestamp": str(int(time.time()))}}}
        with contextlib.suppress(OSError):  # the line is printed to stderr in any case
            Path(path).write_text(json.dumps(error))


def identity() -> dict[str, Any]:
    """Return a mapping that identifies this process for the lock file and the watchdog: host, boot id, pid namespace, pid and start
    time."""
    pid = os.getpid()
    namespace = _pid_namespace()
    return {"host": socket.gethostname(), "boot": _boot_id(), "pid_namespace": namespace, "pid": pid, "start": _start_time(pid)}


def alive_here(owner: dict[str, Any]) -> bool | None:
    """Return True if the process with the identity `owner` is alive, False if not, None if this cannot be checked from this host or
    container.

    The boot id identifies the machine: it does not change when the host is renamed, and it changes when the host is restarted."""
    boot = _boot_id()
    if owner["boot"] != boot:
        return False if owner["host"] == socket.gethostname() else None
    if not boot and owner["host"] != socket.gethostname():
        return None
    namespace = _pid_namespace()
    if owner.get("pid_namespace", namespace) != namespace:
        return None
    start = _start_time(owner["pid"])
    return start is not None and start == owner["start"]


def is_local(owner: dict[str, Any], own: dict[str, Any]) -> bool:
    """Return True if the processes with the identities `owner` and `own` are on one machine and in one container. If `own` is this process,
    `alive_here(owner)` then works.

    Boot ids are compared instead of host names, because two hosts may have the same name."""
    return owner["boot"] == own["boot"] and owner["pid_namespace"] == own["pid_namespace"]


def process_state(pid: int) -> str | None:
    """Return the state of a process on Linux as a letter (R, S, D, T, Z, ...); None if it does not exist or on other systems."""
    fields = _stat_fields(pid)
    return fields[0] if fields else None


class CoreSeconds(NamedTuple):
    """CPU seconds since the start of the machine. `busy` and `disk` are sums over the cores that this process may use; `own` is of this
    process."""

    busy: float  # used by all processes
    own: float  # used by this process and its ended children
    disk: float  # idle while a process waited for the disk


def core_seconds() -> CoreSeconds | None:
    """Return the CPU seconds used until now; None on systems other than Linux."""
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines() if re.match(r"cpu\d", line)]
    except OSError:
        return None
    cores = os.sched_getaffinity(0)
    # user, nice, system, idle, iowait, irq, softirq, steal
    usable, tick = [fields for fields in lines if int(fields[0][3:]) in cores], 1 / os.sysconf("SC_CLK_TCK")
    busy = sum(int(fields[n]) for fields in usable for n in (1, 2, 3, 6, 7, 8))
    return CoreSeconds(busy * tick, sum(os.times()[:4]), sum(int(fields[5]) for fields in usable) * tick)


class RunningClock:
    """A monotonic clock that stops while this process is suspended (SIGSTOP, `scontrol suspend`, a paused container).

    Call `now` at least every `POLL_INTERVAL` seconds, from any thread. If two calls are more than `SUSPENDED_AFTER` seconds apart, the
    process was suspended, and the clock advances by `POLL_INTERVAL` only."""

    def __init__(self) -> None:
        self._lock, self._last_reading, self._suspended = threading.Lock(), time.monotonic(), 0.0

    def now(self) -> float:
        """Return the running time in seconds, counted from an arbitrary start."""
        with self._lock:
            now = time.monotonic()
            gap, self._last_reading = now - self._last_reading, now
            if gap > SUSPENDED_AFTER:
                self._suspended += gap - POLL_INTERVAL  # not the whole gap: the clock advances on a machine that is always late
            return now - self._suspended


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the command name; empty if the process does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _start_time(pid: int) -> str | None:
    """Return the start time of a process in clock ticks since boot; None if the process does not exist or is a zombie.

    The start time distinguishes this process from a later process with the same pid."""
    fields = _stat_fields(pid)
    return fields[19] if fields and fields[0] not in "ZX" else None


def process_age() -> float:
    """Return the seconds since this process started, with a precision of a clock tick (10 ms). Return 0 on a system without /proc."""
    started = _start_time(os.getpid())
    if started is None:
        return 0.0
    return max(time.clock_gettime(time.CLOCK_BOOTTIME) - int(started) / os.sysconf("SC_CLK_TCK"), 0.0)


def _pid_namespace() -> int:
    """Return the id of the pid namespace of this process; 0 if the system has no namespaces. Containers on one machine have different
    ids."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0
