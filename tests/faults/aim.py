"""Inside a launched process: patch the places as their modules are imported, count how often each is passed, and kill there.

Before a kill its record is on the disk, so that a kill that did not land where it was meant to cannot pass for one that did.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tests.faults import breaks
from tests.faults.places import BEGIN, PLACES, SCOPES, STEP_OF, Place, label
from tests.faults.spec import ANY, Spec, append, processes, signal_to

HELD = 10.0  # seconds that a thread is held up at most; the kill comes long before
LATE = 0.02  # seconds that the writer's thread waits before it copies; about an update
Patch = Callable[[Any], Any]  # a function or constant of the program -> its replacement
OnCall = Callable[[tuple[Any, ...]], None]  # receives the arguments of a call


class Aim:
    """Hits of this process so far, and what to do at them."""

    def __init__(self, spec: Spec) -> None:
        self.spec, self.pid, self.rank = spec, os.getpid(), int(os.environ.get("RANK", "0"))
        self.progress: Any = None
        self._hits: Counter[tuple[str, int]] = Counter()
        self._lock = threading.Lock()
        self._held = threading.Event()
        self._here = threading.local()  # scopes and the step of the checkpoint this thread is about

    @property
    def scopes(self) -> list[str]:
        return self._here.__dict__.setdefault("scopes", [])

    def step(self) -> int:
        of_checkpoint = self._here.__dict__.get("step")
        if of_checkpoint is not None:
            return of_checkpoint
        return -1 if self.progress is None else self.progress.global_step

    def about(self, step: int | None) -> int | None:
        """Set the step of the checkpoint this thread is about; returns the one before."""
        before = self._here.__dict__.get("step")
        self._here.step = step
        return before

    def hit(self, place: Place) -> None:
        if os.getpid() != self.pid:  # a loader worker, forked with everything patched
            return
        if place.within is not None and not (not self.scopes if place.within == "-" else place.within in self.scopes):
            return
        name, step = label(place), self.step()
        with self._lock:
            self._hits[name, step] += 1
            self._hits[name, ANY] += 1
            index, of_launch = self._hits[name, step], self._hits[name, ANY]
        fault = self.spec.fault
        row = {"place": name, "step": step, "index": index, "rank": self.rank}
        if self.spec.trace is not None and index >= place.first:
            append(f"{self.spec.trace}/rank{self.rank}.jsonl", row, flush=False)
        if fault is None or self.rank != fault.rank:
            return
        if fault.hold == (name, step):
            self._held.set()
            time.sleep(HELD)
        if name == fault.place and (fault.step, fault.index) in ((step, index), (ANY, of_launch)):
            if fault.hold is not None and not self._held.wait(HELD):
                return
            append(self.spec.record, {**row, "kind": fault.kind, "pid": self.pid, "hold": fault.hold})
            self.kill(fault.kind)

    def kill(self, kind: str) -> None:
        """Returns only for `agent`: this process must then end by itself, wherever it is."""
        if kind == "agent":
            os.kill(os.getppid(), signal.SIGKILL)
            return
        try:
            if kind == "tree":
                kill_others(self.spec.mark)
        finally:
            os.kill(self.pid, signal.SIGKILL)


def kill_others(mark: str) -> None:
    """Every process of the launch but this one, at one instant: none may go on, or start another, while the rest is found."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or torch raises here that a loader worker died
    others: set[int] = set()
    while more := set(processes(mark)) - {os.getpid()} - others:
        for pid in more:
            signal_to(pid, signal.SIGSTOP)
        others |= more
    for pid in sorted(others, key=lambda pid: pid == os.getppid()):  # the agent last: this process may die with it
        signal_to(pid, signal.SIGKILL)


def arm() -> None:
    """Patch what the launch's specification asks for; nothing without one, or in another program than the one that is launched."""
    spec = Spec.read()
    if spec is None or "main.py" not in sys.orig_argv or "torch.distributed.run" in sys.orig_argv:
        return
    aim = Aim(spec)
    patches = _patches(aim)
    for module, found in list(patches.items()):
        if module in sys.modules:
            _apply(sys.modules[module], found)
            del patches[module]
    sys.meta_path.insert(0, _PatchingFinder(patches))
    for place in PLACES:
        if place.target == BEGIN:
            aim.hit(place)


def _patches(aim: Aim) -> dict[str, dict[str, list[Patch]]]:
    """module -> name -> what to put around it, innermost first."""
    patches: dict[str, dict[str, list[Patch]]] = {}

    def add(target: str, patch: Patch) -> None:
        module, _, function = target.partition(":")
        patches.setdefault(module, {}).setdefault(function, []).append(patch)

    if aim.spec.broken is not None:
        target, patch = breaks.BREAKS[aim.spec.broken]
        add(target, patch)
    for target in dict.fromkeys(place.target for place in PLACES if place.target != BEGIN):
        before, after = ([place for place in PLACES if place.target == target and place.after is late] for late in (False, True))
        add(target, _around(functools.partial(_hit_all, aim, before), functools.partial(_hit_all, aim, after)))
    for target, scope in SCOPES.items():
        add(target, functools.partial(_scoped, aim, scope, target in STEP_OF))
    add("linnaeus.progress.training_progress:TrainingProgress.__init__", _around(after=lambda args: setattr(aim, "progress", args[0])))
    # The models here are small: part of their tensors is copied like large ones, which an update then often has to copy itself.
    add("linnaeus.checkpoint.snapshot:LARGE", lambda original: 256)
    add("linnaeus.checkpoint.snapshot:HostSnapshot.finish", _around(before=_wait_in_the_thread))
    return patches


def _hit_all(aim: Aim, places: list[Place], args: tuple[Any, ...]) -> None:
    for place in places:
        aim.hit(place)


def _wait_in_the_thread(args: tuple[Any, ...]) -> None:
    if threading.current_thread() is not threading.main_thread():
        time.sleep(LATE)


def _around(before: OnCall = lambda args: None, after: OnCall = lambda args: None) -> Patch:
    """Return a patch that calls `before` and `after` with the arguments of each call."""

    def patch(original: Any) -> Any:
        @functools.wraps(original)
        def around(*args: Any, **kwargs: Any) -> Any:
            before(args)
            result = original(*args, **kwargs)
            after(args)
            return result

        return around

    return patch


def _scoped(aim: Aim, scope: str | Callable[[tuple[Any, ...]], str], has_step: bool, original: Any) -> Any:
    @functools.wraps(original)
    def scoped(*args: Any, **kwargs: Any) -> Any:
        aim.scopes.append(scope if isinstance(scope, str) else scope(args))
        before = aim.about(args[1]) if has_step else None
        try:
            return original(*args, **kwargs)
        finally:
            aim.scopes.pop()
            if has_step:
                aim.about(before)

    return scoped


def _apply(module: ModuleType, found: dict[str, list[Patch]]) -> None:
    for name, patches in found.items():
        *path, function = name.split(".")
        owner: Any = functools.reduce(getattr, path, module)
        value = getattr(owner, function)
        for patch in patches:
            value = patch(value)
        setattr(owner, function, value)


class _PatchingFinder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: wraps the loaders of the modules to patch."""

    def __init__(self, patches: dict[str, dict[str, list[Patch]]]) -> None:
        self.patches = patches

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in self.patches:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path)
        assert found is not None and found.loader is not None, name
        execute, wanted = found.loader.exec_module, self.patches.pop(name)

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _apply(module, wanted)

        found.loader.exec_module = exec_module  # type: ignore[method-assign]
        return found
