"""Time the parts of an update: waiting for data, inputs, forward, loss, backward and the other entries of `PARTS`.

By default nothing is timed. A user of `Sections` selects the updates to be timed: `StepProfiler` for `profile=`, `SampledTimes` to compare
processes. During these updates, the methods that the loop calls are replaced by timed methods. Timing adds about 10 us to an update.

A mark is a moment at which one part ends and the next part begins, so the times of the parts add up to the time of the update. On the CPU a
moment is a reading of the clock in seconds. On a GPU a moment is a CUDA event: a part ends when the device has executed the operations of
the part, and the host does not wait."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from linnaeus.train.measuring.clock import record_event

if TYPE_CHECKING:
    from linnaeus.train.state import Training

WAITING, REST, STEP_END, EXCHANGE = "waiting", "rest", "step end", "exchange"
# In the order of an update. "exchange": waiting for other processes, in the all-reduce of the label counts and at the end of backward.
PARTS = (WAITING, "inputs", EXCHANGE, "forward", "loss", "weighting", "backward", "update", REST, STEP_END)
ASIDE = ("validation", "saving")  # at the end of some steps; not counted as parts of the update
Marks = list[tuple[str, Any]]  # (name of the part that begins, moment); the last one ends the update


def clock() -> float:
    """Return the seconds of a clock with an arbitrary start (`time.perf_counter`), for differences."""
    return time.perf_counter()


class User(Protocol):
    """Interface of an object that selects updates to be timed and receives their marks."""

    def wants(self, step: int) -> bool:
        """Return True if update `step` (counted from 1) must be timed. This is called before each update."""

    def add(self, t: Training, step: int, marks: Marks) -> None:
        """Receive the marks of update `step`, for which `wants` returned True. This is called after the update."""

    def close(self) -> None:
        """End what is still being measured. This is called at the end of the run, also after an error."""


class TimedCall:
    """Proxy of `inner`. Calling the proxy calls the function `call`; reading an attribute of the proxy reads that attribute of `inner`.

    During timed updates a proxy replaces `Training.runner` and `Training.update`, which the loop calls and whose attributes it reads."""

    def __init__(self, inner: Any, call: Callable[..., Any]) -> None:
        self._inner, self._call = inner, call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Sections:
    """Timer of the parts of the updates of one process.

    annotate: function from the name of a part to a context manager, which is entered during the part. By default it does nothing;
    `StepProfiler` sets it to torch's `record_function`."""

    def __init__(self, device: torch.device, users: Sequence[User]) -> None:
        self.users = list(users)
        self.annotate: Callable[[str], Any] = no_annotation
        self._now: Callable[[], Any] = record_event if device.type == "cuda" else clock
        self._marks: Marks = []
        self._restore: list[tuple[Any, str, Any]] = []  # (owner, attribute, original value; `_MISSING` if it was on the class)
        self._asking: list[User] = []

    # -- called by the loop ----------------------------------------------------------------------------------------------

    def between_steps(self, t: Training) -> None:
        """Pass the marks of the finished update to the users that requested it. Then, if a user requests the next update, begin its marks.

        Call this before the first update of an epoch and after each update."""
        step = t.progress.global_step
        if len(self._marks) == 1:  # at the beginning of an epoch: the marks of the next update have begun
            return
        if any(name == STEP_END for name, _ in self._marks):  # otherwise there was no update, because its data could not be read
            self._mark(WAITING)
            for user in self._asking:
                user.add(t, step, self._marks)
        self._asking = [user for user in self.users if user.wants(step + 1)]
        if self._asking and not self._restore:
            self._install(t)
        if not self._asking and self._restore:
            self._remove()
        self._marks = [(WAITING, self._now())] if self._asking else []

    def window_ready(self) -> None:
        """Mark the end of the wait for data, if the update is timed."""
        if self._asking:
            self._mark(REST)

    def close(self) -> None:
        """Close all users. Call this at the end of the run."""
        for user in self.users:
            user.close()

    # -- marks -----------------------------------------------------------------------------------------------------------

    def _mark(self, name: str) -> None:
        self._marks.append((name, self._now()))

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Return a context manager that times its block as the part `name`. After the block, the enclosing part continues. A block within
        validation or saving is not timed separately: its time counts as validation or saving."""
        outer = self._marks[-1][0]
        if outer in ASIDE:
            yield
            return
        self._mark(name)
        try:
            with self.annotate(name):
                yield
        finally:
            self._mark(outer)

    # -- timed methods ---------------------------------------------------------------------------------------------------

    def _install(self, t: Training) -> None:
        for owner, names, part in (
            (t.workload, ("check_batch", "valid_counts", "prepare"), "inputs"),
            (t.sync, ("reduce_counts",), EXCHANGE),
            (t.reduction, ("finish",), EXCHANGE),
            (t, ("runner",), "forward"),
            (t.workload, ("loss_sums",), "loss"),
            (t.weighting_meter, ("start", "measure", "finish"), "weighting"),
            (t, ("update",), "update"),
        ):
            for name in names:
                self._replace(owner, name, self._timed(getattr(owner, name), part))
        self._replace(t.precision, "backward", self._timed_backward(t.precision.backward, t.reduction.waits_in_backward))
        self._replace(t.tracker, "add_update", self._then_step_end(t.tracker.add_update))
        self._replace(t.clock, "measure", self._timed_activity(t.clock.measure))

    def _replace(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        inner = getattr(owner, name)
        self._restore.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, TimedCall(inner, function) if name in ("runner", "update") else function)

    def _remove(self) -> None:
        for owner, name, value in reversed(self._restore):
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        self._restore = []

    def _timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.part(part):
                return function(*args, **kwargs)

        return call

    def _timed_backward(self, backward: Callable[..., None], waits: bool) -> Callable[..., None]:
        """Return a function that runs `backward` and times it in two parts: "backward" until this process has computed all its gradients,
        then "exchange" while DDP waits for the gradients of the other processes. Without DDP (`waits` is False), the whole time is
        "backward".

        DDP waits in a callback at the end of backward, and callbacks run in the order in which they were queued. The callback that marks
        the start of "exchange" is queued by a hook on the losses, where backward starts, so it runs before the callback of DDP."""
        if not waits:
            return self._timed(backward, "backward")

        def call(losses: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            queue = torch.autograd.Variable._execution_engine.queue_callback  # type: ignore[attr-defined]
            losses.register_hook(lambda _: queue(lambda: self._mark(EXCHANGE)))
            with self.part("backward"):
                backward(losses, *args, **kwargs)

        return call

    def _then_step_end(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls `function` and then begins the part "step end"."""

        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            self._mark(STEP_END)
            return result

        return call

    def _timed_activity(self, measure: Callable[[str], Any]) -> Callable[[str], Any]:
        @contextlib.contextmanager
        def call(activity: str) -> Iterator[None]:
            with self.part({"validating": "validation"}.get(activity, activity)), measure(activity):
                yield

        return call


_MISSING = object()


def no_annotation(name: str) -> contextlib.AbstractContextManager[None]:
    """Return a context manager that does nothing, for any `name`."""
    return contextlib.nullcontext()


def seconds_between(first: Any, last: Any) -> float:
    """Return the seconds from moment `first` to moment `last`: two times in seconds, or two CUDA events. For events, wait until the device
    has reached `last`."""
    if isinstance(first, (int, float)):
        return float(last - first)
    last.synchronize()
    return first.elapsed_time(last) / 1000


def part_seconds(marks: Marks) -> dict[str, float]:
    """Return name -> seconds for each of `PARTS` and `ASIDE`, in this order; 0 for a part that did not occur. The sum is the time from the
    first mark to the last one. For CUDA events, this waits for the device."""
    found = dict.fromkeys((*PARTS, *ASIDE), 0.0)
    for (name, begin), (_, end) in itertools.pairwise(marks):
        found[name] += seconds_between(begin, end)
    return found
