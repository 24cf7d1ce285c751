"""What the processes must know of each other at the same step: that somebody was asked to stop, cannot read its data, or that it is
time for a checkpoint by rank 0's clock.

In training the flags travel with the counts of labels that every update reduces anyway. In a validation pass, where processes
run different numbers of batches, each round of batches has a reduction of its own, read one round later, so that nobody waits.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from linnaeus.engine.training import Training

log = logging.getLogger("linnaeus")

SIGNAL, MAX_TIME, UNREADABLE, SAVE = FLAGS = ("signal", "max_time", "unreadable", "save")
STOPS = frozenset((SIGNAL, MAX_TIME, UNREADABLE))


def own_flags(t: Training, unreadable: bool) -> list[bool]:
    """What this process has to say, in the order of `FLAGS`."""
    clock = t.context.is_master and t.ops.clock_asks_for_checkpoint()
    return [t.stop.signal is not None, t.stop.out_of_time(), unreadable, clock]


def raised(flags: Sequence[float]) -> frozenset[str]:
    return frozenset(name for name, flag in zip(FLAGS, flags, strict=True) if flag)


def agree(t: Training, hosts: Sequence[Any] | None) -> Tensor:
    """float64 [T] on the host: valid labels per task in the whole global batch, of which `hosts` are this process's batches; None
    when it could not read them. Sets `t.agreed`."""
    flags = own_flags(t, hosts is None)
    if hosts is None:
        valid = torch.zeros(len(t.workload.tasks), dtype=torch.float64)
    else:
        valid = functools.reduce(torch.add, [t.workload.valid_counts(host) for host in hosts])
    if not t.context.is_distributed:
        t.agreed = raised(flags)
        return valid
    message = torch.cat([valid, valid.new_tensor(flags)])
    t.vitals.pulse += 1  # who waits for the others is ahead of them
    t.context.all_reduce(message)
    t.agreed = raised(message[-len(FLAGS) :].tolist())
    return message[: -len(FLAGS)]


class Rounds:
    """The same within a validation pass: `t.agreed` is up to date after each `exchange`, the last round's after `settle`."""

    def __init__(self, t: Training) -> None:
        self.t = t
        self._message = torch.zeros(len(FLAGS))
        self._wait = lambda: None

    def exchange(self, unreadable: bool) -> bool:
        """Whether the pass must be cut off: the same answer on every process, one round after somebody said so."""
        cut = self.settle()
        self._message = torch.tensor([*own_flags(self.t, unreadable)[:3], False], dtype=torch.float32)
        self._wait = self.t.context.start_all_reduce(self._message)
        return cut if self.t.context.is_distributed else self.settle()

    def settle(self) -> bool:
        """Read the round that is under way."""
        self._wait()
        self.t.agreed = raised(self._message.tolist())
        return bool(self.t.agreed & STOPS)


def why_interrupted(t: Training, trouble: OSError | None = None) -> str:
    """What stops the run, for a person; `trouble` is this process's. A collective: call it on every process, once all have agreed."""
    where = f" by process rank {t.context.rank}" if t.context.world_size > 1 else ""
    unread = f"the data cannot be read{where}: {' '.join(str(trouble).split())}" if trouble is not None else None
    limit = f"trainer.max_time={t.stop.max_time} is over" if t.stop.out_of_time() else None
    told = t.context.all_gather((unread, t.stop.signal or limit))
    texts = [unread for unread, _ in told if unread] + [asked for _, asked in told if asked]
    return texts[0] if texts else "a request to stop"
