"""Let all process ranks agree on flags at the same step: a request to stop, unreadable data, a checkpoint due by rank 0's clock. Define the
interface of the sum of gradients over the ranks.

In training the flags are sent together with the label counts, which are all-reduced in every update. In a validation pass, ranks run
different numbers of batches. There the flags are all-reduced once for each round, in which every rank runs one batch. The result of a round
is read one round later, so no rank waits for it."""

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from linnaeus.distributed.context import DistributedContext
from linnaeus.distributed.signals import StopRequest
from linnaeus.distributed.watchdog import Watchdog

SIGNAL, MAX_TIME, UNREADABLE, SAVE = FLAGS = ("signal", "max_time", "unreadable", "save")
STOPS = frozenset((SIGNAL, MAX_TIME, UNREADABLE))


class RankSync:
    """Flags that any process rank can raise and all ranks receive.

    agreed: the flags that at least one rank had raised at the last exchange; the same set on every rank."""

    def __init__(
        self,
        context: DistributedContext,
        stop: StopRequest,
        watchdog: Watchdog,
        save_due: Callable[[], bool],
        all_reduce: Callable[[Tensor], Tensor],
    ) -> None:
        """`save_due()` returns True if a checkpoint is due by wall time. It is called on rank 0 only. all_reduce: function that sums label
        counts over the processes, in place, and returns the sum."""
        self.context, self.stop, self.watchdog, self.save_due = context, stop, watchdog, save_due
        self.all_reduce = all_reduce
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

    def stop_requested(self) -> bool:
        """Return True if the ranks have agreed to stop. A single process also checks for a new request, without an exchange."""
        if self.agreed and self.stop_agreed:
            return True
        return self.context.world_size == 1 and (self.stop.signal is not None or self._out_of_time())

    # -- in training -----------------------------------------------------------------------------------------------------

    def reduce_counts(self, counts: Tensor, unreadable: bool = False) -> Tensor:
        """Return `counts` summed over the ranks: the label counts of T tasks, float64 [T] on the host. The same all-reduce exchanges the
        flags; afterwards `agreed` contains the flags of all ranks.

        unreadable: True if this rank could not read its micro-batches of the update; `counts` must then be zeros."""
        flags = self._own_flags(unreadable)
        if not self.context.is_distributed:
            self.agreed = _flag_names(flags)
            return counts
        message = torch.cat([counts, counts.new_tensor(flags)])
        self.watchdog.heartbeats += 1  # a rank that waits in the collective is ahead of the others
        self.all_reduce(message)
        self.agreed = _flag_names(message[-len(FLAGS) :].tolist())
        return message[: -len(FLAGS)]

    # -- in a validation pass --------------------------------------------------------------------------------------------

    def start_round(self, unreadable: bool) -> bool:
        """Start the exchange of flags for a round of validation batches. Return True, on every rank alike, if the pass must end now.

        `unreadable`: True if this rank has failed to read its data. With a single process, a raised flag gives True at once. In a group of
        processes, it gives True one round later."""
        stop = self.finish_round()
        self._message = torch.tensor([*self._own_flags(unreadable)[:3], False], dtype=torch.float32)
        self._wait = self.context.start_all_reduce(self._message)
        return stop if self.context.is_distributed else self.finish_round()

    def finish_round(self) -> bool:
        """Wait for the exchange that `start_round` has started, and set `agreed`. Return True if the validation pass must end."""
        self._wait()
        self._wait = lambda: None
        self.agreed = _flag_names(self._message.tolist())
        return self.stop_agreed

    def start_pass(self) -> None:
        """Clear the flags before a validation pass."""
        self._message = torch.zeros(len(FLAGS))

    # -- the reason ------------------------------------------------------------------------------------------------------

    def interruption_reason(self, error: OSError | None = None) -> str:
        """Return the reason of the interruption as text. This is a collective: call it on every rank after all ranks have agreed to stop.

        error: the error with which this rank failed to read its data, if any."""
        where = f" by process rank {self.context.rank}" if self.context.world_size > 1 else ""
        unread = f"the data cannot be read{where}: {' '.join(str(error).split())}" if error is not None else None
        limit = f"trainer.max_time={self.stop.max_time} is over" if self._out_of_time() else None
        reasons = self.context.all_gather((unread, self.stop.signal or limit))
        texts = [unread for unread, _ in reasons if unread] + [request for _, request in reasons if request]
        return texts[0] if texts else "a request to stop"

    def _out_of_time(self) -> bool:
        return time.monotonic() >= self.stop.deadline

    def _own_flags(self, unreadable: bool) -> list[bool]:
        """Return the flags of this rank, in the order of `FLAGS`."""
        save = self.context.is_master and self.save_due()
        return [self.stop.signal is not None, self._out_of_time(), unreadable, save]


def _flag_names(flags: Sequence[float]) -> frozenset[str]:
    return frozenset(name for name, flag in zip(FLAGS, flags, strict=True) if flag) if any(flags) else frozenset()


class GradientReduction(Protocol):
    """Sum of the gradients of an update over micro-batches and processes.

    factor: number by which the losses must be multiplied; W for DDP, which averages the gradients of W processes. waits_in_backward: True
    if the last backward waits for other processes, False if `finish` does."""

    factor: int
    waits_in_backward: bool

    def micro_batch(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Return a context manager for forward and backward of a micro-batch. last: True for the last micro-batch of an update."""

    def finish(self) -> None:
        """Complete the gradients. Call this after the last backward of an update."""


class DDPReduction:
    """Reduction by DDP, which averages the gradients in the last backward of an update. With one process, autograd alone sums them."""

    def __init__(
        self, processes: int, no_sync: Callable[[], contextlib.AbstractContextManager[Any]], sharded: Sequence[torch.nn.Parameter] = ()
    ) -> None:
        """processes: W. no_sync: function that returns DDP's context manager for backward without a reduction. sharded: parameters that are
        divided over the processes; their gradients are sums over the W processes and not averages when backward ends."""
        self.factor, self.no_sync, self.waits_in_backward = processes, no_sync, processes > 1
        self.sharded = list(sharded)

    def micro_batch(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if last else self.no_sync()

    @torch.no_grad()
    def finish(self) -> None:
        grads = [parameter.grad for parameter in self.sharded if parameter.grad is not None]
        if grads:
            torch._foreach_div_(grads, self.factor)
