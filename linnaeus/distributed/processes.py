"""Operating-system processes: who this one is, whether another one is alive, and ending with the parent."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any


def die_with_launcher() -> None:
    """`die_with_parent` for a process that a launcher started. torchrun may be gone already: then the first process of the system has
    us, which is torchrun itself only in a container of its own."""
    parent = os.getppid()
    if parent == 1 and "TORCHELASTIC_RUN_ID" in os.environ and os.path.exists("/proc/1/cmdline"):
        with open("/proc/1/cmdline", "rb") as file:
            first = file.read()
        if b"torch" not in first and b"launch" not in first:
            print("error: the launcher of this process is gone", file=sys.stderr, flush=True)
            os._exit(1)
    die_with_parent(parent)


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process when `parent`, the one that started it, is gone, as far as the system can do that. Under torchrun every
    rank has a session of its own, so killing the agent or its group would leave ranks training on."""
    if sys.platform != "linux":
        return
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it went before we asked
        os.kill(os.getpid(), signal.SIGKILL)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _start_time(pid: int) -> str | None:
    """Clock ticks since boot at which a process started: tells a process from a later one with the same pid. None: no such
    process, or a zombie, which runs no more."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def _process_space() -> int:
    """What tells containers on one machine apart, whose processes have numbers of their own; 0 where the system does not say."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def identity() -> dict[str, Any]:
    """Who this process is, for the lock file."""
    pid = os.getpid()
    return {"host": socket.gethostname(), "boot": _boot_id(), "space": _process_space(), "pid": pid, "start": _start_time(pid)}


def alive_here(owner: dict[str, Any]) -> bool | None:
    """Whether the owner of a note lives; None when only its own machine or container can tell. The boot is the machine: a host that got
    another name meanwhile has the same one, and a restarted host has another."""
    boot = _boot_id()
    if owner["boot"] != boot:
        return False if owner["host"] == socket.gethostname() else None
    if not boot and owner["host"] != socket.gethostname():
        return None
    space = _process_space()
    if owner.get("space", space) != space:  # an earlier version did not note it
        return None
    start = _start_time(owner["pid"])
    return start is not None and start == owner["start"]
