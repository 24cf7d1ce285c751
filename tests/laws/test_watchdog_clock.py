"""What is no loss: a process that did not run, a launcher that stands still. And nothing keeps one that has given up from ending."""

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

from linnaeus.distributed import awake, watchdog
from linnaeus.distributed.watchdog import LOST, Watch, Watchdog

OTHER = {"host": "elsewhere", "boot": "b", "space": 1, "pid": 7, "start": "1", "doing": "training", "step": 5, "pulse": 5, "patient": False}


class Store(dict):
    """Names and what was said under them."""

    def set(self, name, value):
        self[name] = value

    def check(self, names):
        return all(name in self for name in names)

    get = dict.__getitem__


class Ended(Exception):
    """In place of the process's end."""


@pytest.fixture
def time_passes(monkeypatch):
    """A clock that a test sets: `time_passes(seconds)`."""
    now = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], time=time.time, sleep=time.sleep)
    monkeypatch.setattr(watchdog, "time", clock)
    monkeypatch.setattr(awake, "time", clock)

    def passes(seconds: float) -> None:
        now[0] += seconds

    return passes


def started(rank: int = 0, timeout: float = 600.0) -> Watchdog:
    """As after `start`, without threads."""
    found = Watchdog(SimpleNamespace(rank=rank, world_size=2, is_distributed=True), timeout, timeout)  # type: ignore[arg-type]
    found._store, found._answered, found.patient = Store(), found.clock.now(), False

    def end(line: str) -> None:
        raise Ended(line)

    found._end = end  # type: ignore[method-assign]
    return found


def turns(of: Watchdog, time_passes, *seconds: float) -> None:
    """What `of` waits for takes as long as this, and then it stops."""
    left = list(seconds)

    def wait(beat: float) -> bool:
        if left:
            time_passes(left.pop(0))
            return False
        return True

    of._stop = SimpleNamespace(wait=wait)  # type: ignore[assignment]


def test_time_in_which_a_process_did_not_run_is_nobodys_silence(time_passes):
    me = started()
    me._store.set("note/1", json.dumps(OTHER))
    watch = Watch(me)
    watch.read()
    assert watch.stuck() is None
    time_passes(3600)  # suspended, and the other one as well: it has had no turn yet
    assert watch.lost(watch.read(), 5.0, LOST) is None and watch.stuck() is None
    for _ in range(int(LOST) - 2):
        time_passes(1)
        assert watch.lost(watch.read(), 5.0, LOST) is None
    for _ in range(3):
        time_passes(1)
        found = watch.lost(watch.read(), 5.0, LOST)
    assert found is not None and "has given no sign of life for" in found, "what was lost meanwhile is found as ever"


def test_where_every_turn_comes_late_a_loss_is_still_found(time_passes):
    me = started()
    turns(me, time_passes, *[4.0] * 40)
    with pytest.raises(Ended):
        me._guard()


def test_the_store_is_given_up_after_its_silence_and_not_for_a_pause(time_passes):
    me = started()
    turns(me, time_passes, 1, 1, 3600, 1, 1, 40, 1)
    me._guard()
    turns(me, time_passes, *[1] * int(LOST))
    with pytest.raises(Ended, match="store, which is on this node, does not answer"):
        me._guard()
    with pytest.raises(Ended, match="the first node has failed"):
        other = started(rank=1)
        turns(other, time_passes, *[1] * 32)
        other._guard()


def test_silence_does_not_count_while_the_store_did_not_answer(time_passes):
    """The note of the other is as old as the store's last answer: it could not be renewed either."""
    me = started()
    me._store.set("note/1", json.dumps(OTHER))
    note, asked = me._note, []

    def slow() -> None:
        asked.append(1)
        for _ in range(36 if len(asked) == 2 else 0):
            time_passes(1)
            me.clock.now()  # the other thread has its turns
        note()

    me._note = slow  # type: ignore[method-assign]
    turns(me, time_passes, 1, 1, 1, 1)
    me._watch()
    turns(me, time_passes, *[1] * 32)
    with pytest.raises(Ended, match="no sign of life"):
        me._watch()


def test_a_launcher_that_is_stopped_is_waited_for_and_named(time_passes, monkeypatch):
    monkeypatch.setenv("GROUP_RANK", "0")
    state = ["T"]
    monkeypatch.setattr(watchdog, "_state", lambda pid: state[0])
    me = started(rank=1, timeout=100.0)
    turns(me, time_passes, *[1] * 90)
    me._guard()
    state[0] = "S"  # continued; the first answer is yet to come
    me._answered = me.clock.now() - 90
    seen = iter(["T", "T", *["S"] * 20])
    monkeypatch.setattr(watchdog, "_state", lambda pid: next(seen))
    turns(me, time_passes, *[1] * 20)
    me._guard()
    monkeypatch.setattr(watchdog, "_state", lambda pid: "T")
    me._answered = me.clock.now()
    turns(me, time_passes, *[1] * 140)
    with pytest.raises(Ended, match=rf"the launcher of this node \(process {os.getppid()}\).* is stopped"):
        me._guard()
    monkeypatch.setenv("GROUP_RANK", "1")  # the store is another node's
    me._answered = me.clock.now()
    turns(me, time_passes, *[1] * 40)
    with pytest.raises(Ended, match="the first node has failed"):
        me._guard()


def test_a_first_process_that_lives_here_has_not_failed(monkeypatch):
    me = started(rank=1)
    me.notes[0] = {**OTHER, **me._me}
    assert "process rank 0 on" in me._store_lost() and "failed" not in me._store_lost()


def test_what_the_system_says_of_a_stopped_process():
    child = subprocess.Popen(["sleep", "60"])
    try:
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        assert watchdog._state(child.pid) == "T" and watchdog._state(os.getpid()) == "R"
    finally:
        child.kill()
        child.wait()
    assert watchdog._state(child.pid) is None


class Stderr:
    """One that does not print."""

    def __init__(self, error: Exception | None) -> None:
        self.error, self.over = error, threading.Event()

    def write(self, text: str) -> None:
        if self.error is not None:
            raise self.error
        self.over.wait(30)  # a full pipe

    def flush(self) -> None:
        self.write("")


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), ValueError("I/O operation on closed file"), None])
def test_nothing_about_printing_prevents_the_end(monkeypatch, error):
    left, told, stderr = [], [], Stderr(error)

    def leave(status: int) -> None:
        left.append(status)
        raise Ended

    def give_up(line: str, step: int) -> None:
        told.append((line, step))
        raise OSError(errno.ENOSPC, "No space left on device")

    me = started()
    me._give_up = give_up
    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(sys, "stderr", stderr)
    begun = time.monotonic()
    with pytest.raises(Ended):
        Watchdog._end(me, "a line")
    stderr.over.set()
    assert left == [1] and told == [("a line", 0)] and time.monotonic() - begun < 5
