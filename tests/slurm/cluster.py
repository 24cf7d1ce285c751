"""A real SLURM in a folder: munge, the controller and two node daemons of one core each, on ports and sockets of their own.

    with slurm_cluster(folder) as environment:            # adds SLURM_CONF
        subprocess.run(["sbatch", ...], env=environment)

Needs root and Debian's `slurm-wlm` and `munge`, which `install()` installs. All its processes end with the block; another SLURM on the
machine is not changed.

Three settings are shorter than on a cluster, to save time: `cred_expire`, which is also the wait of a requeued job (two minutes by
default), the interval of the main scheduler (1 s), and `KillWait`, the time between SIGTERM and SIGKILL.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("slurm-wlm", "munge")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")
NODES = ("n0", "n1")
KILL_WAIT = 15  # seconds
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1
ReturnToService=2
KillWait={kill_wait}
OverTimeLimit=0
MpiDefault=none
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def install() -> None:
    """Install SLURM's programs from Debian if they are missing. Raise `RuntimeError` if that is impossible."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing and (os.geteuid() != 0 or shutil.which("apt-get") is None):
        raise RuntimeError(f"{', '.join(missing)} missing; only root on Debian can install {' '.join(PACKAGES)}")
    if missing:
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES]):
            subprocess.run(command, env=quiet, check=True, stdout=subprocess.DEVNULL)
    if os.geteuid() != 0:
        raise RuntimeError("the node daemon starts jobs as their users: only root can run it")


@contextlib.contextmanager
def slurm_cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Start the daemons with their files in `folder`, which must be new and on a short path (it contains a socket). Yield the
    environment for SLURM's commands. End the daemons and all jobs after the block."""
    for name in ("", "state", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)  # munge refuses a key that other users could replace
    (folder / "slurm.conf").write_text(_configuration(folder))
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    daemons: list[subprocess.Popen] = []
    try:
        for command in _commands(folder):
            daemons.append(_daemon(command, folder, environment))
        _wait_until_idle(environment, folder)
        yield environment
    finally:
        _end(daemons, environment)


def _configuration(folder: Path) -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    host = socket.gethostname().split(".")[0]
    node = f"NodeHostname={host} NodeAddr=127.0.0.1 CPUs=1 RealMemory={memory * 9 // 10 // len(NODES)} State=UNKNOWN"
    nodes = "\n".join(f"NodeName={name} Port={_free_port()} {node}" for name in NODES)
    return CONFIGURATION.format(folder=folder, host=host, controller_port=_free_port(), kill_wait=KILL_WAIT, nodes=nodes)


def _commands(folder: Path) -> list[list[str]]:
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    files = [f"--{option}={folder}/munge.{option}" for option in ("socket", "pid-file", "log-file", "seed-file")]
    return [
        ["munged", "--foreground", "--force", f"--key-file={key}", *files],
        ["slurmctld", "-D", "-i"],
        *(["slurmd", "-D", "-N", node] for node in NODES),
    ]


def _daemon(command: list[str], folder: Path, environment: dict[str, str]) -> subprocess.Popen:
    with (folder / f"{command[0]}-{command[-1].strip('-')}.out".replace("/", "-")).open("w") as out:
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)


def _wait_until_idle(environment: dict[str, str], folder: Path, seconds: float = 60) -> None:
    """Wait until the nodes accept jobs."""
    end = time.monotonic() + seconds
    while True:
        done = subprocess.run(["sinfo", "-h", "-o", "%T"], env=environment, capture_output=True, text=True)
        if done.stdout.strip() == "idle":
            return
        if time.monotonic() > end:
            logs = "\n".join(f"{path.name}:\n{path.read_text()[-2000:]}" for path in sorted(folder.glob("*.out")))
            raise RuntimeError(f"SLURM does not start: {done.stdout} {done.stderr}\n{logs}")
        time.sleep(0.2)


def _end(daemons: list[subprocess.Popen], environment: dict[str, str]) -> None:
    """End the jobs, through their daemons, then the daemons."""
    if len(daemons) > len(NODES) + 1:
        subprocess.run(["scancel", "--user=root"], env=environment, capture_output=True)
        end = time.monotonic() + 2 * KILL_WAIT
        while subprocess.run(["squeue", "-h"], env=environment, capture_output=True).stdout.strip() and time.monotonic() < end:
            time.sleep(0.5)
    for daemon in reversed(daemons):
        daemon.terminate()
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
