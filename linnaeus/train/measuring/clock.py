"""Measure the wall time of a launch in parts: start-up, compiling, validation, saving, and training, which includes waiting for data.

The launch begins when the program has read its configuration, as for `trainer.max_time`. The start of Python is included in `StartTimes`
only.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from linnaeus.distributed import processes

KEPT = 1024  # newest updates between two reports whose times are kept


class Clock:
    """Wall time of this launch, divided into activities, in seconds. `starting`: time from the start of the launch to `start_training`,
    without compiling, validation and saving. `validating`, `saving`: time spent on validation and on saving so far. `waiting`: time spent
    waiting for the loader, which is a part of the training time.

    `updates`: times of single updates. `device`: on a GPU, the times in `updates` are measured by CUDA events; otherwise by the host
    clock."""

    def __init__(self, device: torch.device | None = None, before: float = 0.0) -> None:
        """`before`: seconds of the launch that passed before this call."""
        self.started = self.now() - before
        self.starting = self.validating = self.saving = self.waiting = 0.0
        self.updates = UpdateTimes(record_event if device is not None and device.type == "cuda" else self.now)
        self._compiled_aside = compile_seconds()  # spent on compilation before this launch, and in validation and saving

    now = staticmethod(time.perf_counter)  # seconds

    def start_training(self) -> None:
        """End the start-up. Call this before the first update."""
        self.starting = self.wall() - self.validating - self.saving - self.compiling

    @contextlib.contextmanager
    def measure(self, activity: str) -> Iterator[None]:
        """Return a context manager that adds the time of its block to the attribute `activity`, "validating" or "saving".

        The current update is left out of `updates`."""
        start, compiled = self.now(), compile_seconds()
        try:
            yield
        finally:
            setattr(self, activity, getattr(self, activity) + self.now() - start)
            self._compiled_aside += compile_seconds() - compiled
            self.updates.interrupt()

    @property
    def compiling(self) -> float:
        """Return the seconds that torch.compile has spent in this launch, without compilation during validation and saving."""
        return compile_seconds() - self._compiled_aside

    def wall(self) -> float:
        """Return the seconds since the start of this launch."""
        return self.now() - self.started

    def training(self) -> float:
        """Return the seconds of training: all time that was not spent on start-up, compiling, validation or saving. Waiting for data is
        included."""
        return self.wall() - self.starting - self.compiling - self.validating - self.saving


def compile_seconds() -> float:
    """Return the seconds that torch.compile has spent in this process. This does not import the compiler; 0 if it is not imported."""
    compiler = sys.modules.get("torch._dynamo.utils")
    return float(compiler.calculate_time_spent().get("total_wall_time", 0.0)) if compiler is not None else 0.0


class StartTimes:
    """Wall time of the parts of a start, from the start of the process to the first update. `parts`: name -> seconds."""

    def __init__(self) -> None:
        """Record the first part, `imports`, from the start of the process until now: Python, the configuration, and the imports."""
        self.parts = {"imports": processes.process_age()}
        self._last = time.perf_counter()

    def end_of(self, part: str) -> None:
        """Record the end of `part`, which began at the end of the part before it."""
        now = time.perf_counter()
        self.parts[part], self._last = now - self._last, now

    def line(self, compiling: float) -> str:
        """Record the end of the part `first update`, and return a line for the log. Call this once, after the first update. `compiling`:
        seconds that torch.compile has taken so far."""
        self.end_of("first update")
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.parts.items())
        compiled = f", of which compiling {compiling:.1f}" if compiling else ""
        return f"first update {sum(self.parts.values()):.1f} s after the start of the process: {parts}{compiled}"


class UpdateTimes:
    """Times of single updates, from the end of one update to the end of the next. Updates with validation or saving are left out.

    now: function that returns the present moment, in seconds or as a recorded CUDA event. moments: list to which the loop appends `now()`
    after each update; None marks an update that is left out. Recording an event takes about 5 us; the host does not wait for the event."""

    def __init__(self, now: Callable[[], Any]) -> None:
        self.now, self.moments = now, deque[Any](maxlen=KEPT + 1)

    def interrupt(self) -> None:
        """Mark the update in progress: `take` will leave it out."""
        if self.moments and self.moments[-1] is not None:
            self.moments.append(None)

    def take(self) -> list[float]:
        """Return the seconds of each update since the last call, at most of the newest `KEPT` updates. An update that the GPU has not
        finished yet is returned by a later call."""
        moments = list(self.moments)
        while moments and not _reached(moments[-1]):
            moments.pop()
        for _ in moments[:-1]:
            self.moments.popleft()
        pairs = [(first, last) for first, last in itertools.pairwise(moments) if first is not None and last is not None]
        if pairs and hasattr(pairs[0][0], "elapsed_time"):
            return [first.elapsed_time(last) / 1000 for first, last in pairs]
        return [last - first for first, last in pairs]


def _reached(moment: Any) -> bool:
    return moment is None or not hasattr(moment, "query") or moment.query()


def record_event() -> torch.cuda.Event:
    """Return a CUDA event that is recorded now and can be timed."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
