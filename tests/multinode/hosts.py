"""Two hosts on this machine: each has its own network, host name and process table, and a virtual cable connects them.

    with two_hosts() as (first, second):
        process = first.start(["python", "..."])         # start a process on the first host
        second.kill()                                    # kill every process of the second host
        second.connect("down")                           # disconnect it

They are network, name and process namespaces, so root and Linux's `ip` and `unshare` are necessary; `why_not()` returns what is missing.
They share the disk, as on a cluster.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

NETWORK = "10.99.0"


def why_not() -> str | None:
    """Return what is missing on this machine, None if two hosts can be made."""
    missing = [program for program in ("ip", "unshare") if shutil.which(program) is None]
    if missing:
        return f"there is no {missing[0]} command (Debian: iproute2, util-linux)"
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    made = subprocess.run(["ip", "netns", "add", "linnaeus-probe"], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "delete", "linnaeus-probe"], capture_output=True)
    return f"network namespaces cannot be made ({made.stderr.strip()})" if made.returncode else None


class Host:
    """One host. `number`: from 0; `address`: its IP address; `interface`: its network device."""

    def __init__(self, number: int) -> None:
        self.number, self.name = number, f"host{number}"
        self.namespace, self.interface = f"linnaeus-{number}", f"linn{number}"
        self.address = f"{NETWORK}.{number + 1}"
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, command: Sequence[str], log: Path, folder: Path, private: Path | None = None) -> subprocess.Popen[str]:
        """Start `command` on this host in `folder`; its output is appended to `log`. `private`: mount an empty disk of this host there."""
        disk = f"mount -t tmpfs none {private} && " if private else ""
        inside = ["sh", "-c", f'{disk}hostname {self.name} && "$@"', "sh", *command]  # the shell is the init of this host
        spaces = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": self.interface}
        with log.open("a") as out:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, *spaces, *inside],
                cwd=folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self._processes.append(process)
        return process

    def kill(self) -> None:
        """Kill every process of this host: the kernel kills all processes of a namespace with its init."""
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes = []

    def connect(self, state: str = "up") -> None:
        """Connect the cable of this host, or disconnect it (`down`): its packets are lost without an error on the other host."""
        _ip("-n", self.namespace, "link", "set", self.interface, state)


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Make two connected hosts. Remove them after the block, with their processes."""
    hosts = (Host(0), Host(1))
    try:
        for host in hosts:
            subprocess.run(["ip", "netns", "delete", host.namespace], capture_output=True)  # left by a test that was killed
            _ip("netns", "add", host.namespace)
            _ip("-n", host.namespace, "link", "set", "lo", "up")
        first, second = hosts
        _ip("link", "add", first.interface, "netns", first.namespace, "type", "veth", "peer", second.interface, "netns", second.namespace)
        for host in hosts:
            _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", host.interface)
            host.connect()
        yield hosts
    finally:
        for host in hosts:
            host.kill()
            subprocess.run(["ip", "netns", "delete", host.namespace], capture_output=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
