"""The watchdog does not abort for a suspended process or a suspended launcher, and an abort always ends the process."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from linnaeus.distributed import processes, watchdog
from linnaeus.distributed.watchdog import LOST_AFTER, Watchdog

PEER = {"host": "elsewhere", "boot": "b", "pid_namespace": 1, "pid": 7, "start": "1", "activity": "training", "step": 5, "heartbeats": 5}


class Store(dict):
    """A key-value store in this process."""

    def set(self, name, value):
        self[name] = value

    def check(self, names):
        return all(name in self for name in names)

    get = dict.__getitem__


class Aborted(Exception):
    """Raised in place of the end of the process."""


@pytest.fixture
def advance(monkeypatch):
    """A function that advances the clock of the watchdog by some seconds."""
    now = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], time=time.time, sleep=time.sleep)
    monkeypatch.setattr(watchdog, "time", clock)
    monkeypatch.setattr(processes, "time", clock)

    def forward(seconds: float) -> None:
        now[0] += seconds

    return forward


def started(rank: int = 0, timeout: float = 600.0) -> Watchdog:
    """Return a watchdog as after `start`, without threads."""
    found = Watchdog(SimpleNamespace(rank=rank, world_size=2, is_distributed=True), timeout, timeout)  # type: ignore[arg-type]
    found._store, found._last_answer, found.long_timeout = Store(), found.clock.now(), False

    def abort(line: str) -> None:
        raise Aborted(line)

    found._abort = abort  # type: ignore[method-assign]
    return found


def set_intervals(of: Watchdog, advance, *seconds: float) -> None:
    """Let each wait of the watchdog's loop take the next of `seconds`; then the loop ends."""
    left = list(seconds)

    def wait(interval: float) -> bool:
        if left:
            advance(left.pop(0))
            return False
        return True

    of._stop = SimpleNamespace(wait=wait)  # type: ignore[assignment]


def test_time_in_which_this_process_was_suspended_does_not_count(advance):
    own = started()
    own._store.set("status/1", json.dumps(PEER))
    monitor = own._monitor()
    monitor.read()
    assert monitor.find_stuck(600.0) is None
    advance(3600)  # suspended together with the peer, which has not written a status yet
    assert monitor.find_lost(monitor.read(), 5.0, LOST_AFTER) is None and monitor.find_stuck(600.0) is None
    for _ in range(int(LOST_AFTER) - 2):
        advance(1)
        assert monitor.find_lost(monitor.read(), 5.0, LOST_AFTER) is None
    for _ in range(3):
        advance(1)
        found = monitor.find_lost(monitor.read(), 5.0, LOST_AFTER)
    assert found is not None and "has sent no status for" in found, "a peer lost in the meantime is found"


def test_a_loss_is_found_although_every_interval_is_late(advance):
    own = started()
    set_intervals(own, advance, *[4.0] * 40)
    with pytest.raises(Aborted):
        own._watch_store()


def test_a_silent_store_is_lost_and_a_suspension_is_not_silence(advance):
    own = started()
    set_intervals(own, advance, 1, 1, 3600, 1, 1, 40, 1)
    own._watch_store()
    set_intervals(own, advance, *[1] * int(LOST_AFTER))
    with pytest.raises(Aborted, match="store, which is on this node, does not answer"):
        own._watch_store()
    with pytest.raises(Aborted, match="the first node has failed"):
        other = started(rank=1)
        set_intervals(other, advance, *[1] * 32)
        other._watch_store()


def test_time_without_an_answer_of_the_store_is_not_silence_of_the_peer(advance):
    """The peer could not write to the store in this time either."""
    own = started()
    own._store.set("status/1", json.dumps(PEER))
    publish, calls = own._publish_status, []

    def slow() -> None:
        calls.append(1)
        for _ in range(36 if len(calls) == 2 else 0):
            advance(1)
            own.clock.now()  # the other thread runs meanwhile
        publish()

    own._publish_status = slow  # type: ignore[method-assign]
    set_intervals(own, advance, 1, 1, 1, 1)
    own._watch_peers()
    set_intervals(own, advance, *[1] * 32)
    with pytest.raises(Aborted, match="has sent no status"):
        own._watch_peers()


def test_a_suspended_launcher_is_waited_for_and_named(advance, monkeypatch):
    monkeypatch.setenv("GROUP_RANK", "0")
    state = ["T"]
    monkeypatch.setattr(watchdog, "process_state", lambda pid: state[0])
    own = started(rank=1, timeout=100.0)
    set_intervals(own, advance, *[1] * 90)
    own._watch_store()
    state[0] = "S"  # continued; the store has not answered yet
    own._last_answer = own.clock.now() - 90
    seen = iter(["T", "T", *["S"] * 20])
    monkeypatch.setattr(watchdog, "process_state", lambda pid: next(seen))
    set_intervals(own, advance, *[1] * 20)
    own._watch_store()
    monkeypatch.setattr(watchdog, "process_state", lambda pid: "T")
    own._last_answer = own.clock.now()
    set_intervals(own, advance, *[1] * 140)
    with pytest.raises(Aborted, match=rf"the launcher of this node \(process {os.getppid()}\).* is suspended"):
        own._watch_store()
    monkeypatch.setenv("GROUP_RANK", "1")  # the store is on another node
    own._last_answer = own.clock.now()
    set_intervals(own, advance, *[1] * 40)
    with pytest.raises(Aborted, match="the first node has failed"):
        own._watch_store()


def test_rank_0_alive_on_this_host_is_not_reported_as_failed(monkeypatch):
    own = started(rank=1)
    own.statuses[0] = {**PEER, **own._identity}
    assert "process rank 0 on" in own._store_lost() and "failed" not in own._store_lost()


def test_state_of_a_suspended_process():
    child = subprocess.Popen(["sleep", "60"])
    try:
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        assert processes.process_state(child.pid) == "T" and processes.process_state(os.getpid()) == "R"
    finally:
        child.kill()
        child.wait()
    assert processes.process_state(child.pid) is None


class Stderr:
    """A stream whose writes fail or block."""

    def __init__(self, error: Exception | None) -> None:
        self.error, self.released = error, threading.Event()

    def write(self, text: str) -> None:
        if self.error is not None:
            raise self.error
        self.released.wait(30)  # a full pipe

    def flush(self) -> None:
        self.write("")


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), ValueError("I/O operation on closed file"), None])
def test_an_error_in_printing_does_not_prevent_the_end(monkeypatch, error):
    statuses, reported, stderr = [], [], Stderr(error)

    def exit_process(status: int) -> None:
        statuses.append(status)
        raise Aborted

    def on_abort(line: str, step: int) -> None:
        reported.append((line, step))
        raise OSError(errno.ENOSPC, "No space left on device")

    own = started()
    own._on_abort = on_abort
    monkeypatch.setattr(os, "_exit", exit_process)
    monkeypatch.setattr(sys, "stderr", stderr)
    start = time.monotonic()
    with pytest.raises(Aborted):
        Watchdog._abort(own, "a line")
    stderr.released.set()
    assert statuses == [1] and reported == [("a line", 0)] and time.monotonic() - start < 5
