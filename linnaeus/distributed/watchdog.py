"""The watchdog: if a process of the group dies or hangs, end the run soon and print the process, its activity and its step.

Two threads run in every process of a group. One exchanges statuses over the launcher's store (`peer_status.py`) and detects:

    a process that is dead on this host                 after LAUNCHER_GRACE seconds: usually its launcher ends the group before
    a process whose last status is too old              after LOST_AFTER seconds
    a group in which no rank makes progress             after `trainer.timeout`
    an exception that another process has published     after LAUNCHER_GRACE seconds

The other thread detects a store that does not answer. Time in which this process was suspended is not counted. The store is in the
process of the launcher: if the launcher is suspended, the time is not counted either, up to `trainer.timeout`."""

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from linnaeus.distributed import DistributedContext
from linnaeus.distributed.peer_status import ENDING, PeerMonitor, Status, process_name
from linnaeus.distributed.processes import RunningClock, alive_here, identity, is_local, process_state
from linnaeus.errors import RunFailed

T = TypeVar("T")
STATUS_INTERVAL = 1.0  # seconds between two statuses
LOST_AFTER = 30.0  # seconds of silence after which a process is lost; a thread that holds the interpreter lock delays statuses
LOST_AFTER_DISCONNECT = 15.0  # the same after the connection to the process has broken
LAUNCHER_GRACE = 5.0  # seconds for the launcher to end a group after a process has died
CONNECTION_WORDS = ("gloo", "nccl", "socket", "connection", "store")  # in the text of errors that only report a broken connection


class ProcessLost(RunFailed):
    """Failure of a run because another process of the group failed, died or hangs. The message names that process in one line."""


class Watchdog:
    """Supervision of the processes of a group. Without a group no thread is started.

    The training loop sets these attributes: activity, a word for the present work of this process; step, its `global_step`; heartbeats, a
    count that grows while this process makes progress; long_timeout, True while `trainer.startup_timeout` is the limit in place of
    `trainer.timeout`.

    `trainer.startup_timeout` is longer. It applies to the first update, which compiles, allocates and fills caches, and at the end, when
    rank 0 alone writes the report. The collectives always have the longer limit."""

    def __init__(self, context: DistributedContext, timeout: float, startup_timeout: float) -> None:
        """`timeout`, `startup_timeout`: seconds without progress after which the run is ended."""
        self.context, self.timeout, self.startup_timeout = context, timeout, startup_timeout
        self.activity, self.step, self.heartbeats = "starting", 0, 0
        self.long_timeout = True
        self.statuses: dict[int, Status] = {}  # rank -> newest status
        self.clock = RunningClock()
        self._identity, self._parent = identity(), os.getppid()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    # -- called in the main thread ---------------------------------------------------------------------------------------

    def start(self, on_abort: Callable[[str, int], None]) -> None:
        """Start the threads. If another process is lost, a thread calls `on_abort(line, step)` and then ends this process."""
        if self.context.is_distributed:
            self._on_abort = on_abort
            self._store = self.context.store.clone()
            self._store.set_timeout(timedelta(seconds=LOST_AFTER))
            self._publish_status()  # here, so that a process that dies during the start is found too
            self._last_answer = self.clock.now()
            self._threads = [threading.Thread(target=f, name="watchdog", daemon=True) for f in (self._watch_peers, self._watch_store)]
            for thread in self._threads:
                thread.start()

    def stop(self) -> None:
        """Stop the threads at the end of the run."""
        self.activity = ENDING
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=5.0)  # it may be waiting for a store that does not answer
        self._threads = []

    def publish_error(self, error: BaseException) -> None:
        """Send `error`, the exception that ends this process, to the other processes. Do nothing if it only reports a broken connection to
        another process."""
        if self._threads and not is_connection_error(error):
            _run_within(5.0, lambda: self._store.set(f"error/{self.context.rank}", f"{type(error).__name__}: {error}"))

    def find_cause(self) -> str | None:
        """Return a line about the process that caused a connection error; None if no such process is found.

        This takes at most 19 s, because a launcher asks the other processes to end and kills them about 30 s later."""
        if not self._threads:
            return None
        return _run_within(LOST_AFTER_DISCONNECT + 4 * STATUS_INTERVAL, self._poll_for_cause, self._store_lost)

    def _poll_for_cause(self) -> str | None:
        deadline = time.monotonic() + LOST_AFTER_DISCONNECT + 2 * STATUS_INTERVAL
        monitor = self._monitor()
        while time.monotonic() < deadline:
            try:
                found = monitor.find_error() or monitor.find_lost(monitor.read(), 0.0, LOST_AFTER_DISCONNECT)
            except RuntimeError:
                return self._store_lost()
            if found:
                return found
            time.sleep(STATUS_INTERVAL / 5)
        return None

    # -- in the threads --------------------------------------------------------------------------------------------------

    def _watch_peers(self) -> None:
        """Exchange statuses every second. End this process when another process is lost or stuck or has failed. Runs in a thread."""
        monitor, seconds_since_error = self._monitor(), 0.0
        while not self._stop.wait(STATUS_INTERVAL):
            try:
                self._publish_status()
                statuses = monitor.read()
                if self.clock.now() - self._last_answer > LOST_AFTER / 2:
                    monitor.restart_silence()  # while the store did not answer, the others could not write to it either
                lost = monitor.find_lost(statuses, LAUNCHER_GRACE, LOST_AFTER) or monitor.find_stuck(self._stuck_after())
                error = monitor.find_error()
            except RuntimeError:  # the store is lost, perhaps because rank 0 has finished first; `_watch_store` decides
                continue
            self._last_answer = self.clock.now()
            seconds_since_error += STATUS_INTERVAL if error else 0.0
            if lost or seconds_since_error > LAUNCHER_GRACE:  # the failed process usually ends this one by the broken connection
                self._abort(lost or str(error))
        if self.activity == ENDING:
            with contextlib.suppress(RuntimeError):  # the store has ended together with rank 0
                self._publish_status()

    def _watch_store(self) -> None:
        """End this process if its parent has ended, or if the store has not answered for `LOST_AFTER` seconds. Time during which the
        launcher is suspended does not count, until the last answer is `timeout` seconds old.

        This runs in a thread and does not call the store, because a call may block."""
        suspended = self._last_answer  # the last time the launcher was found suspended
        while not self._stop.wait(STATUS_INTERVAL):
            if os.getppid() != self._parent:  # for systems on which `die_with_parent` has no effect
                os._exit(1)
            now = self.clock.now()
            if self._launcher_is_suspended() and now - self._last_answer < self.timeout:
                suspended = now  # training goes on without the store until the launcher is continued
            elif now - max(self._last_answer, suspended) > LOST_AFTER:
                self._abort(self._store_lost())

    def _abort(self, line: str) -> None:
        """Print `line`, call `on_abort` and end this process with status 1. Printing and `on_abort` have a time limit, because stderr or
        the disk may hang."""
        if self._stop.is_set() or self.activity == ENDING:
            return
        try:
            _run_within(2.0, lambda: print(f"error: {line}", file=sys.stderr, flush=True))
            _run_within(10.0, lambda: self._on_abort(line, self.step))
        finally:
            os._exit(1)

    def _monitor(self) -> PeerMonitor:
        return PeerMonitor(self.context.rank, self.context.world_size, self._store, self.clock, self.statuses, self._status)

    def _stuck_after(self) -> float:
        saving = self.activity == "saving"  # may take long on a slow disk
        return self.startup_timeout if self.long_timeout or saving else self.timeout

    def _status(self) -> Status:
        return {**self._identity, "activity": self.activity, "step": self.step, "heartbeats": self.heartbeats}

    def _publish_status(self) -> None:
        self._store.set(f"status/{self.context.rank}", json.dumps({**self._status(), "time": time.time()}))

    def _store_lost(self) -> str:
        """Return a line for the log that says what is known about the loss of the connection to the store.

        The store is in the launcher of the first node, so the launcher, the node or the network has failed."""
        line, status = "the launcher's store cannot be reached: the first node has failed", self.statuses.get(0)
        if self._launcher_is_suspended():
            return f"the launcher of this node (process {self._parent}), which holds the store, is suspended and was not continued in time"
        if self.context.rank == 0:
            return "the launcher's store, which is on this node, does not answer"
        if status and is_local(status, self._identity) and alive_here(status):
            where = f"at step {status['step']} ({status['activity']})"
            return f"the launcher's store does not answer, but {process_name(0, status)} is alive, {where}"
        return f"{line}, with {process_name(0, status)} at step {status['step']} ({status['activity']})" if status else line

    def _launcher_is_suspended(self) -> bool:
        """Return True if the launcher of this process contains the store and is suspended (SIGSTOP, Ctrl-Z)."""
        return os.environ.get("GROUP_RANK") == "0" and process_state(self._parent) in ("T", "t")


def is_connection_error(error: BaseException) -> bool:
    """Return True if `error` only reports that another process cannot be reached."""
    text = str(error).lower()
    from_torch = type(error).__module__.startswith("torch.distributed") or type(error).__name__.startswith("Dist")
    return isinstance(error, RuntimeError) and (from_torch or any(word in text for word in CONNECTION_WORDS))


def _run_within(seconds: float, function: Callable[[], T], otherwise: Callable[[], T | None] = lambda: None) -> T | None:
    """Call `function` in a thread and return its result. If it takes longer than `seconds`, return `otherwise()`.

    Return `otherwise()` also if `function` raises an error of the store, of a disk or of a closed file."""
    results: list[T] = []

    def run() -> None:
        with contextlib.suppress(RuntimeError, OSError, ValueError):  # ValueError: a closed file
            results.append(function())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else otherwise()
