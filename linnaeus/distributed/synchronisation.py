"""Flags that every process rank learns at the same step: a request to stop, unreadable data, a checkpoint due by rank 0's clock.

In training the flags travel with the label counts that every update all-reduces anyway. In a validation pass, where ranks run
different numbers of batches, each round of batches has a reduction of its own. It is read one round later, so no rank waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from linnaeus.distributed.context import DistributedContext
from linnaeus.distributed.signals import StopRequest
from linnaeus.distributed.watchdog import Watchdog

SIGNAL, MAX_TIME, UNREADABLE, SAVE = FLAGS = ("signal", "max_time", "unreadable", "save")
STOPS = frozenset((SIGNAL, MAX_TIME, UNREADABLE))


class RankSync:
    """`agreed`: the flags of any rank at the last exchange, the same on every rank."""

    def __init__(self, context: DistributedContext, stop: StopRequest, watchdog: Watchdog, save_due: Callable[[], bool]) -> None:
        """`save_due()` says on rank 0 whether a checkpoint is due by the clock."""
        self.context, self.stop, self.watchdog, self.save_due = context, stop, watchdog, save_due
        self.agreed: frozenset[str] = frozenset()
        self._message = torch.zeros(len(FLAGS))
        self._wait: Callable[[], object] = lambda: None

    @property
    def stop_agreed(self) -> bool:
        return bool(self.agreed & STOPS)

    @property
    def data_unreadable(self) -> bool:
        return UNREADABLE in self.agreed

    @property
    def save_agreed(self) -> bool:
        return SAVE in self.agreed

    def stop_asked(self) -> bool:
        """Return True if all ranks agreed to stop, or if the only process is asked to stop now."""
        return self.stop_agreed or (self.context.world_size == 1 and (self.stop.signal is not None or self.stop.out_of_time()))

    # -- in training -----------------------------------------------------------------------------------------------------

    def reduce_counts(self, counts: Tensor, unreadable: bool = False) -> Tensor:
        """Return `counts`, float64 [T] on the host, summed over the ranks; sets `agreed`. `unreadable`: this rank could not read its
        window, and its counts are zero."""
        flags = self._own_flags(unreadable)
        if not self.context.is_distributed:
            self.agreed = _raised(flags)
            return counts
        message = torch.cat([counts, counts.new_tensor(flags)])
        self.watchdog.pulse += 1  # a rank that waits in the collective is ahead of the others
        self.context.all_reduce(message)
        self.agreed = _raised(message[-len(FLAGS) :].tolist())
        return message[: -len(FLAGS)]

    # -- in a validation pass --------------------------------------------------------------------------------------------

    def start_round(self, unreadable: bool) -> bool:
        """Start the reduction of a round of batches. Return True if the pass must end now: the same answer on every rank, one round
        after a rank raised a flag (at once in a single process)."""
        stop = self.finish_round()
        self._message = torch.tensor([*self._own_flags(unreadable)[:3], False], dtype=torch.float32)
        self._wait = self.context.start_all_reduce(self._message)
        return stop if self.context.is_distributed else self.finish_round()

    def finish_round(self) -> bool:
        """Read the reduction that is under way. Return True if the pass must end."""
        self._wait()
        self._wait = lambda: None
        self.agreed = _raised(self._message.tolist())
        return self.stop_agreed

    def start_pass(self) -> None:
        """Forget the last round of an earlier pass."""
        self._message = torch.zeros(len(FLAGS))

    # -- the reason ------------------------------------------------------------------------------------------------------

    def interruption_reason(self, error: OSError | None = None) -> str:
        """Return why the run is interrupted, for a person. `error` is this rank's reading error. A collective: call it on every rank
        after all have agreed to stop."""
        where = f" by process rank {self.context.rank}" if self.context.world_size > 1 else ""
        unread = f"the data cannot be read{where}: {' '.join(str(error).split())}" if error is not None else None
        limit = f"trainer.max_time={self.stop.max_time} is over" if self.stop.out_of_time() else None
        reasons = self.context.all_gather((unread, self.stop.signal or limit))
        texts = [unread for unread, _ in reasons if unread] + [asked for _, asked in reasons if asked]
        return texts[0] if texts else "a request to stop"

    def _own_flags(self, unreadable: bool) -> list[bool]:
        """Return this rank's flags in the order of `FLAGS`."""
        save = self.context.is_master and self.save_due()
        return [self.stop.signal is not None, self.stop.out_of_time(), unreadable, save]


def _raised(flags: Sequence[float]) -> frozenset[str]:
    return frozenset(name for name, flag in zip(FLAGS, flags, strict=True) if flag)
