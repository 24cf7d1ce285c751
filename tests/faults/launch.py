"""Launches of the real `main.py`: one with a fault aimed at it, or a run through a chain of kills to its end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests import fork_server, runs
from tests.faults.compare import what_differs
from tests.faults.places import RANDOM
from tests.faults.settings import Setting
from tests.faults.spec import Fault, Spec, append, processes, read_rows, signal_to

SITE = Path(__file__).resolve().parent / "site"
LIMIT = 120.0  # seconds that any launch may take: nothing here takes a tenth of it
HUNG = 1000  # status of a launch that had to be ended after `LIMIT`
LINGER = 10.0  # seconds after a kill within which the last process of the launch must be gone


@dataclass(frozen=True)
class Instant:
    """A kill from outside, wherever the run is then: `seconds` after the run directory was started, or, when `early`, after the
    launch. `seed` chooses the rank."""

    seconds: float
    kind: str
    early: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Kill:
    """`damaged`: the newest checkpoint is cut short before the launch, so that an older one is resumed from."""

    aim: Fault | Instant
    damaged: bool = False


@dataclass
class Launch:
    """Result of one launch. `status`: of the process that was started, negative for a signal; `lingered`: seconds until its last
    process was gone; `outlived`: how many had to be ended after `LINGER`."""

    status: int
    log: str
    landed: dict[str, Any] | None = None
    lingered: float = 0.0
    outlived: int = 0
    seconds: float = 0.0


@dataclass
class Chain:
    """A run from its first launch to its end. `failures`: lines that say what went wrong; none is what must be."""

    launches: list[Launch] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def landed(self) -> list[dict[str, Any]]:
        return [launch.landed for launch in self.launches if launch.landed is not None]


def launch(
    setting: Setting,
    root: Path,
    aim: Fault | Instant | None = None,
    trace: Path | None = None,
    broken: str | None = None,
    forked: bool = False,
) -> Launch:
    """Start the run of `root`, kill it as `aim` says, and wait until none of its processes is left. `forked`: from the fork
    server, instead of starting an interpreter for each process."""
    mark = uuid.uuid4().hex
    root.mkdir(parents=True, exist_ok=True)
    record, log = root / "landed.jsonl", root / f"launch-{len(list(root.glob('launch-*.log'))) + 1}.log"
    before = len(read_rows(record))
    fault = aim if isinstance(aim, Fault) else None
    if trace is not None:
        trace.mkdir(parents=True, exist_ok=True)
    spec = Spec(mark, str(record), fault, str(trace) if trace is not None else None, broken)
    path = os.pathsep.join([str(SITE), str(runs.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, **spec.environment(), "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    environment["PYTHONFAULTHANDLER"] = "1"
    started = time.time()
    with open(log, "wb") as output:
        process = (fork_server.Popen if forked else subprocess.Popen)(
            setting.command(root), cwd=runs.ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        if isinstance(aim, Instant):
            if not aim.early:
                wait_for_directory(process, setting.directory(root) / "launches", started)
            time.sleep(aim.seconds)
            kill_from_outside(process, mark, aim, record)
        status = process.wait(LIMIT)
    except subprocess.TimeoutExpired:
        status = HUNG
        for pid in processes(mark):
            signal_to(pid, signal.SIGABRT)  # each writes into the log where its threads stand
        time.sleep(3)
    finally:
        lingered, outlived = wait_for_the_last(mark, LINGER if process.poll() is not None else 0.0)
        process.wait()
    landed = read_rows(record)[before:]
    return Launch(status, str(log), landed[0] if landed else None, lingered, outlived, time.time() - started)


def wait_for_the_last(mark: str, limit: float) -> tuple[float, int]:
    """(seconds until no process of a launch was left, how many were ended after `limit` seconds)."""
    start = time.monotonic()
    while (left := processes(mark)) and time.monotonic() < start + limit:
        time.sleep(0.05)
    for pid in left:
        signal_to(pid, signal.SIGKILL)
    return time.monotonic() - start, len(left)


def wait_for_directory(process: subprocess.Popen[bytes], launches: Path, started: float) -> None:
    """Until a launch begun at `started` has written itself down in its run directory, or has ended."""
    while process.poll() is None:
        if launches.is_dir() and any(path.stat().st_mtime >= started - 0.01 for path in launches.iterdir()):
            return
        time.sleep(0.01)


def kill_from_outside(process: subprocess.Popen[bytes], mark: str, instant: Instant, record: Path) -> None:
    """The record is written while the whole launch stands still: it was alive, and then it was killed."""
    everyone = processes(mark)
    for pid in everyone:
        signal_to(pid, signal.SIGSTOP)
    if process.poll() is None:
        targets = {"tree": everyone, "agent": [process.pid], "rank": [_a_rank(everyone, instant.seed, process.pid)]}[instant.kind]
        append(record, {"place": f"{RANDOM} / from outside", **asdict(instant), "pids": targets})
        for pid in targets:
            signal_to(pid, signal.SIGKILL)
    for pid in everyone:
        signal_to(pid, signal.SIGCONT)


def _a_rank(everyone: Sequence[int], seed: int, root: int) -> int:
    """One of the processes that run `main.py` under a launcher: children of the agent; the program itself without one."""
    ranks = sorted(pid for pid in everyone if _parent(pid) == root and b"\0RANK=" in _environment(pid))
    return random.Random(seed).choice(ranks) if ranks else root


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return -1


def _environment(pid: int) -> bytes:
    try:
        return b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


# -- a run and its kills -------------------------------------------------------------------------------------------------------


def run_through(
    setting: Setting, kills: Sequence[Kill], root: Path, reference: Path, broken: str | None = None, real: int | None = None
) -> Chain:
    """Launch the run of `root` once for each kill, then once more to its end, and compare it with the run of `reference`. The first `real`
    launches start interpreters, the others are forked; None: all start interpreters."""
    chain = Chain()

    def forked() -> bool:
        return real is not None and len(chain.launches) >= real

    for kill in kills:
        if kill.damaged and not damage_newest(setting.directory(root)):
            chain.failures.append("there were not two checkpoints, so that one could be damaged")
        chain.launches.append(launch(setting, root, kill.aim, forked=forked()))
        _judge_kill(chain, kill)
        if chain.failures:
            return chain
    chain.launches.append(launch(setting, root, broken=broken, forked=forked()))
    last = chain.launches[-1]
    if last.status != 0:
        chain.failures.append(f"the last launch ended with status {last.status}, see {last.log}")
        return chain
    chain.failures += what_differs(setting.directory(root), setting.directory(reference))
    return chain


def _judge_kill(chain: Chain, kill: Kill) -> None:
    last = chain.launches[-1]
    if last.landed is None:
        chain.failures.append(f"{kill.aim} did not land (status {last.status}), see {last.log}")
    elif last.status in (0, HUNG):
        chain.failures.append(f"{kill.aim} landed, yet the launch ended with status {last.status}, see {last.log}")
    if last.outlived:
        chain.failures.append(f"{last.outlived} processes outlived {kill.aim} by {LINGER:.0f} s, see {last.log}")


def damage_newest(run: Path) -> bool:
    """Cut a file of the newest checkpoint short, as a disk that lied about a flush would; False unless an older one is there."""
    found = sorted((run / "checkpoints").glob("step-????????"))
    if len(found) < 2:
        return False
    path = found[-1] / "training_state.pt"
    os.truncate(path, path.stat().st_size // 2)
    return True
