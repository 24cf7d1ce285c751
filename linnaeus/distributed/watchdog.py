"""Signs of life: when a process of the group dies or hangs, the run ends soon and says which one, where, and at what step.

Every process notes over the launcher's store, once a second, who it is, what it is doing and how far it is; rank 0 reads all notes,
the others rank 0's. A process that is gone from this host is known at once (its launcher ends the rest), one that has been silent for
`LOST` seconds is given up, and a group in which nothing moves for `trainer.timeout` is stuck. An exception that ends a process is noted
as its last words, so that the others, who only see a broken connection, can name the cause. Time in which this process did not run
(a suspended job) is nobody's silence, nor is that in which the launcher, who holds the store, is stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from linnaeus.distributed import DistributedContext
from linnaeus.distributed.awake import Awake
from linnaeus.distributed.processes import alive_here, identity
from linnaeus.errors import RunFailed

T = TypeVar("T")
BEAT = 1.0  # seconds between two notes
LOST = 30.0  # seconds of silence after which a process is given up; a thread that holds the interpreter may be silent for some
SILENT = 15.0  # the same once the link to it is broken
GRACE = 5.0  # seconds for the launcher to end a group of which a process is gone
BROKEN_LINK = ("gloo", "nccl", "socket", "connection", "store")  # words of errors that say only that another process is gone


class ProcessLost(RunFailed):
    """Another process of the group failed, died or hangs; one line that names it."""


class Watchdog:
    """`doing`, `step` and `pulse` are set by the loop: what this process is at, its `global_step`, and a count that grows as long
    as it gets on. Without a group nothing runs."""

    def __init__(self, context: DistributedContext, timeout: float, startup_timeout: float) -> None:
        self.context, self.timeout, self.startup_timeout = context, timeout, startup_timeout
        self.doing, self.step, self.pulse = "starting", 0, 0
        self.patient = True  # the first update compiles, allocates and reads caches: `startup_timeout` holds until it is done
        self._me, self._parent = identity(), os.getppid()
        self.notes: dict[int, dict[str, Any]] = {}  # the newest of each process watched
        self.clock = Awake()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    # -- on the main thread ----------------------------------------------------------------------------------------------

    def start(self, give_up: Callable[[str, int], None]) -> None:
        """Begin to note and to watch; `give_up(line, step)` is called, in another thread, before the process is ended."""
        if self.context.is_distributed:
            self._give_up = give_up
            self._store = self.context.store.clone()
            self._store.set_timeout(timedelta(seconds=LOST))
            self._note()  # before anything can happen to this process
            self._answered = self.clock.now()
            self._threads = [threading.Thread(target=act, name="watchdog", daemon=True) for act in (self._watch, self._guard)]
            for thread in self._threads:
                thread.start()

    def stop(self) -> None:
        """The run is over: silence means nothing from now on."""
        self.doing = "ending"
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=5.0)  # it may be waiting for a store that is gone
        self._threads = []

    def first_update_is_done(self) -> None:
        """From here on a wait is a hang. (The collectives' own limit stays: this watch is earlier and knows more.)"""
        self.patient = False

    def be_patient(self) -> None:
        """The report at the end is rank 0's alone and may take its time."""
        self.patient = True

    def last_words(self, error: BaseException) -> None:
        """Tell the others why this process ends, unless it ends because another did."""
        if self._threads and not is_broken_link(error):
            _within(5.0, lambda: self._store.set(f"last/{self.context.rank}", f"{type(error).__name__}: {error}"))

    def explain(self) -> str | None:
        """After a broken link: the process that broke it; None when nobody is found to have. Waits less than launchers do before they
        kill what they asked to end (30 s)."""
        if not self._threads:
            return None
        return _within(SILENT + 4 * BEAT, self._find_cause, self._store_lost)

    def _find_cause(self) -> str | None:
        ends = time.monotonic() + SILENT + 2 * BEAT
        watch = Watch(self)
        while time.monotonic() < ends:
            try:
                found = watch.last_words() or watch.lost(watch.read(), 0.0, SILENT)
            except RuntimeError:
                return self._store_lost()
            if found:
                return found
            time.sleep(BEAT / 5)
        return None

    # -- in the threads --------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        watch, said = Watch(self), 0.0
        while not self._stop.wait(BEAT):
            try:
                self._note()
                notes = watch.read()
                if self.clock.now() - self._answered > LOST / 2:
                    watch.hear_again()  # the others could note no more than this process could read
                lost = watch.lost(notes, GRACE, LOST) or watch.stuck()
                words = watch.last_words()
            except RuntimeError:  # the store is gone; perhaps because the run is over on rank 0, and soon here
                continue
            self._answered = self.clock.now()
            said += BEAT if words else 0.0
            if lost or said > GRACE:  # who said it was given time to bring the others down by itself
                self._end(lost or str(words))
        if self.doing == "ending":
            self._say_goodbye()

    def _guard(self) -> None:
        """Needs no store: one that does not answer may block the other thread."""
        stopped = self._answered  # when the launcher was last seen to be
        while not self._stop.wait(BEAT):
            if os.getppid() != self._parent:  # where the system does not end us with the launcher
                os._exit(1)
            now = self.clock.now()
            if self._launcher_is_stopped() and now - self._answered < self.timeout:
                stopped = now  # training needs no store: perhaps it is continued
            elif now - max(self._answered, stopped) > LOST:
                self._end(self._store_lost())

    def _end(self, line: str) -> None:
        if self._stop.is_set() or self.doing == "ending":
            return
        try:  # the disk may be what hangs, or is full; stderr may be on it, or a pipe that nobody reads
            _within(2.0, lambda: print(f"error: {line}", file=sys.stderr, flush=True))
            _within(10.0, lambda: self._give_up(line, self.step))
        finally:
            os._exit(1)

    def _store_lost(self) -> str:
        """The launcher of process rank 0 holds the store: gone are both, or the way to their host."""
        line, note = "the launcher's store cannot be reached: the first node has failed", self.notes.get(0)
        if self._launcher_is_stopped():
            return f"the launcher of this node (process {self._parent}), which holds the store, is stopped: it was not continued in time"
        if self.context.rank == 0:
            return "the launcher's store, which is on this node, does not answer"
        if note and self._is_here(note) and alive_here(note):
            return f"the launcher's store does not answer, and {_who(0, note)} lives, at step {note['step']} ({note['doing']})"
        return f"{line}, with {_who(0, note)} at step {note['step']} ({note['doing']})" if note else line

    def _launcher_is_stopped(self) -> bool:
        """Whether this node's launcher holds the store and has been told to stand still (SIGSTOP, Ctrl-Z)."""
        return os.environ.get("GROUP_RANK") == "0" and _state(self._parent) in ("T", "t")

    def _is_here(self, note: dict[str, Any]) -> bool:
        """Whether it is of a process that can be seen from this one; hosts may share a name."""
        return note["boot"] == self._me["boot"] and note["space"] == self._me["space"]

    def _note(self) -> None:
        note = {**self._me, "doing": self.doing, "step": self.step, "pulse": self.pulse, "patient": self.patient, "beat": time.time()}
        self._store.set(f"note/{self.context.rank}", json.dumps(note))

    def _say_goodbye(self) -> None:
        try:
            self._note()
        except RuntimeError:
            return  # rank 0 held the store and has left


class Watch:
    """What one process sees of the others. Times are of this process's clock, `Awake`."""

    def __init__(self, watchdog: Watchdog) -> None:
        self.v, self.store = watchdog, watchdog._store
        world, rank = watchdog.context.world_size, watchdog.context.rank
        self.others = [r for r in range(world) if r != rank] if rank == 0 else [0]
        self.notes, self._now = watchdog.notes, watchdog.clock.now
        self._moved, self._pulses = self._now(), -1
        self.hear_again()

    def hear_again(self) -> None:
        """Silence counts from now on."""
        self._heard = dict.fromkeys(self.others, self._now())

    def read(self) -> dict[int, dict[str, Any]]:
        """The newest note of each process watched, as far as there is one."""
        for rank in self.others:
            if not self.store.check([f"note/{rank}"]):
                continue
            note = json.loads(self.store.get(f"note/{rank}"))
            if note != self.notes.get(rank):
                self.notes[rank], self._heard[rank] = note, self._now()
        return self.notes

    def lost(self, notes: dict[int, dict[str, Any]], grace: float, silence: float) -> str | None:
        """The first process that is gone, by what its host says (given `grace` seconds for its launcher to act), or that has been
        silent for `silence` of them. One that never spoke may still be starting."""
        for rank, note in notes.items():
            if note["doing"] == "ending":
                continue
            gone, quiet = self.v._is_here(note) and alive_here(note) is False, self._now() - self._heard[rank]
            if quiet > (grace if gone else silence):
                end = "died" if gone else f"has given no sign of life for {quiet:.0f} s; it was"
                step = max(note["step"], self.v.step)  # all are at the same one, and its note may be a beat old
                return f"{_who(rank, note)} {end} at step {step} ({note['doing']})"
        return None

    def last_words(self) -> str | None:
        """The exception that ended another process."""
        for rank in range(self.v.context.world_size):
            if rank != self.v.context.rank and self.store.check([f"last/{rank}"]):
                words = " ".join(self.store.get(f"last/{rank}").decode().split())[:300]
                self.read()
                note = self.notes.get(rank)
                return f"{_who(rank, note)} failed at step {note['step']}: {words}" if note else f"process rank {rank} failed: {words}"
        return None

    def stuck(self) -> str | None:
        """Rank 0: nothing has moved anywhere for too long; names the process that is furthest behind."""
        if self.v.context.rank != 0:
            return None
        mine = {"doing": self.v.doing, "step": self.v.step, "pulse": self.v.pulse, **self.v._me}
        notes = {0: mine, **self.notes}
        pulses = sum(note["pulse"] for note in notes.values())
        if pulses != self._pulses:
            self._pulses, self._moved = pulses, self._now()
        patient = self.v.patient or self.v.doing == "saving"  # a slow disk is no hang
        limit = self.v.startup_timeout if patient else self.v.timeout
        quiet = self._now() - self._moved
        if quiet <= limit:
            return None
        least = min(note["pulse"] for note in notes.values())
        behind = [f"{_who(rank, note)} at step {note['step']} ({note['doing']})" for rank, note in notes.items() if note["pulse"] == least]
        more = f" and {len(behind) - 4} others" if len(behind) > 4 else ""
        return f"nothing has moved for {quiet:.0f} s (trainer.timeout); furthest behind: {', '.join(behind[:4])}{more}"


def _state(pid: int) -> str | None:
    """The letter the system has for what a process does, where it tells."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return None


def _within(seconds: float, act: Callable[[], T], otherwise: Callable[[], T | None] = lambda: None) -> T | None:
    """What `act` returns, or `otherwise` when it takes longer or fails for the store, or a disk."""
    done: list[T] = []

    def run() -> None:
        with contextlib.suppress(RuntimeError, OSError, ValueError):  # ValueError: a closed file
            done.append(act())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return done[0] if done else otherwise()


def _who(rank: int, note: dict[str, Any]) -> str:
    return f"process rank {rank} on {note['host']} (pid {note['pid']})"


def is_broken_link(error: BaseException) -> bool:
    """Whether an error says only that another process cannot be reached."""
    text = str(error).lower()
    named = type(error).__module__.startswith("torch.distributed") or type(error).__name__.startswith("Dist")
    return isinstance(error, RuntimeError) and (named or any(word in text for word in BROKEN_LINK))
