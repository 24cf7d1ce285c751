"""Set the precision of forward and backward, and make the optimizer update: finite check, clipping, step, loss scale, moving average.

The loss scale of fp16 follows the rule of `torch.amp.GradScaler` and uses its kernel, but with one `found_inf` for the whole update: with
torch's GradScaler one of two optimizers could step while the other skips, and every gradient would be read twice.

A non-finite gradient is detected, and the update skipped, on the device; the host reads the counts only when a row is logged. After DDP's
all-reduce the gradient and its norm are equal on all ranks, so all ranks skip the same updates."""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward

from linnaeus.distributed.row_shards import RowShards
from linnaeus.optim.ema import EMA
from linnaeus.optim.growth import Growth, seed_second_moments
from linnaeus.optim.optimizers import Optimizers

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class GradScaler:
    """Loss scale of fp16, float32 [] on the device: doubled after `INTERVAL` consecutive applied updates, halved by a skipped update."""

    INITIAL, GROWTH, BACKOFF, INTERVAL = 2.0**16, 2.0, 0.5, 2000

    def __init__(self, device: torch.device) -> None:
        self.value = torch.full((), self.INITIAL, device=device)
        self.growth_tracker = torch.zeros((), dtype=torch.int32, device=device)

    def update(self, found_inf: Tensor) -> None:
        """Adjust the loss scale after an update. `found_inf`, float32 [] on the device, is 1 if the update was skipped.

        The host does not wait for the device."""
        torch._amp_update_scale_(self.value, self.growth_tracker, found_inf, self.GROWTH, self.BACKOFF, self.INTERVAL)

    def state_dict(self) -> dict[str, Any]:
        return {"scale": float(self.value), "growth_tracker": int(self.growth_tracker)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.value.fill_(state["scale"])
        self.growth_tracker.fill_(state["growth_tracker"])


class Precision:
    """Numeric precision of a run: float32, float64, or autocast to bf16 or fp16; fp16 also scales the loss.

    `name`: a value of `trainer.precision`. `scaler`: the loss scale for fp16, otherwise None."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = name
        self.dtype = torch.float64 if name == "float64" else torch.float32  # of parameters, losses and task weights
        self.scaler = GradScaler(device) if name == "fp16" else None
        self._context: Any = torch.autocast(device.type, AUTOCAST[name]) if name in AUTOCAST else contextlib.nullcontext()
        self._one = torch.ones((), dtype=self.dtype, device=device)

    def autocast(self) -> Any:
        """Return the context manager for the forward pass. Every call returns the same object, so do not nest it."""
        return self._context

    @property
    def loss_scale(self) -> Tensor | None:
        """Return the factor by which the losses are multiplied before backward, float32 []; None if the losses are not scaled."""
        return None if self.scaler is None else self.scaler.value

    def backward(self, losses: Tensor, factors: Tensor | None = None) -> None:
        """Run backward from the sum of `losses` [T], each multiplied by its entry of `factors` [T] (default 1) and by the loss scale.

        Without the loss scale, float16 gradients below 6e-8 would be 0. The gradients of a non-finite loss become NaN (0 x inf), even where
        they would otherwise be finite, so every rank detects the loss in the all-reduced gradient norm without another message."""
        factors = self._one if factors is None else factors
        if self.scaler is not None:
            factors = factors * self.scaler.value
        factors = torch.add(factors, losses.detach(), alpha=0)
        # This is the call that `torch.autograd.backward(losses, factors)` makes after it has imported sympy to check the shapes, which
        # takes 0.25 s of the start-up. A product, a sum and their backward instead would cost 25 us, 3 % of an update of a small MLP.
        _engine_run_backward((losses,), (factors,), False, False, (), allow_unreachable=True, accumulate_grad=True)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.scaler is None else self.scaler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the loss scale.

        Ignore the state if it was saved with another precision: a run that changes its precision (if allowed) starts with a new scale."""
        if self.scaler is not None and state:
            self.scaler.load_state_dict(state)


class Update:
    """The optimizer update, called once per step after backward. It checks and clips the gradients, steps the optimizers and counts skips.

    `grad_norm`: gradient norm of the last update before clipping, float [] on the device. `norms`: gradient norm of each update since the
    last log row."""

    def __init__(
        self,
        optimizers: Optimizers,
        max_grad_norm: float | None = None,
        scaler: GradScaler | None = None,
        ema: EMA | None = None,
        statistics: Sequence[Tensor] = (),
        growth: Growth | None = None,
        after: Callable[[Tensor], None] | None = None,
        rows: int = 1,
        shards: RowShards | None = None,
    ) -> None:
        """`statistics`: buffers that the forward pass changes (batch norm); a skipped update restores them. `after`: function that is
        called with `found_inf` after each update, before the moving average is updated; None: nothing is called. `rows`: for how many of
        the newest updates the gradient norm is kept, at least 1. `shards`: parameters that are divided over the processes; their norm is
        summed over the processes.

        Weights that `growth` connects in a skipped update stay connected."""
        self.optimizers, self.scaler, self.ema = optimizers, scaler, ema
        self.growth, self.after, self._number = growth, after, 0
        names = [name for optimizer in optimizers.optimizers for name in optimizer.names]
        self._sharded = [name in shards.rows for name in names] if shards is not None and shards.rows else []
        self._all_reduce = shards.context.all_reduce if shards is not None else None
        self._statistics = list(statistics)
        self._before = [buffer.clone() for buffer in self._statistics]
        device, dtype = optimizers.params[0].device, optimizers.params[0].dtype
        self._one = torch.ones((), dtype=dtype, device=device)
        # A tensor on the host divides like a number on every device, and is not made again at every update.
        self._clip = torch.tensor(max_grad_norm, dtype=dtype) if max_grad_norm else None
        self.norms = RecentNorms(rows, device, dtype)
        self.grad_norm = torch.zeros((), device=device)
        self.found_inf = torch.zeros((), device=device)

    def start(self, number: int = 0) -> None:
        """Prepare update `number` (counted from 1), before its first forward pass: copy the buffers that are restored if the update is
        skipped.

        `number` is used by growth and by an optimizer that rounds at random."""
        self._number = self.optimizers.number = number
        if self._statistics:
            with torch.no_grad():
                torch._foreach_copy_(self._before, self._statistics)

    @torch.no_grad()
    def __call__(self) -> Tensor:
        """Make one update from the gradients of the parameters, at the current learning rate. Return `grad_norm`.

        If the norm is not finite, skip the update: parameters, moments, step counts and averages are unchanged to the bit."""
        grads = self.optimizers.gradients()
        new = self.growth.connect(self._number, grads) if self.growth is not None else []
        slot = self.norms.next_slot()
        norm = total_norm(grads, slot) if not self._sharded else self._norm_over_shards(grads, slot)
        zero = norm - norm  # NaN if the norm is infinite or NaN; NaN != NaN. Comparing with a Python number would cost 3 us more
        torch.ne(zero, zero, out=self.found_inf)
        divisor = self._divisor(norm)
        if new:
            seed_second_moments(self.optimizers, new, grads, divisor, self.found_inf)
        self.optimizers.step(self.found_inf, divisor, grads)
        for buffer, before in zip(self._statistics, self._before, strict=True):
            buffer.copy_(torch.where(self.found_inf > 0, before, buffer))
        self.grad_norm = slot
        if self.scaler is not None:
            slot.div_(self.scaler.value)
            self.scaler.update(self.found_inf)
        if self.after is not None:
            self.after(self.found_inf)
        if self.ema is not None:
            self.ema.update(self.found_inf)
        return self.grad_norm

    def _norm_over_shards(self, grads: list[Tensor | None], out: Tensor) -> Tensor:
        """Return the norm of the gradients of the whole parameters, and write it to `out`. `grads`: gradients on this process; those of
        sharded parameters are of this process's rows only."""
        parts: list[Tensor | None] = [grad for grad, sharded in zip(grads, self._sharded, strict=True) if sharded and grad is not None]
        common = [grad for grad, sharded in zip(grads, self._sharded, strict=True) if not sharded]
        if not parts:  # the sharded parameters are frozen
            return total_norm(common, out)
        assert self._all_reduce is not None
        square = self._all_reduce(total_norm(parts).square())
        return total_norm([*common, square.sqrt()], out)

    def _divisor(self, norm: Tensor) -> Tensor | None:
        """Return the divisor of the gradients that removes the loss scale S and clips the norm: max(S, norm / max_grad_norm); None: 1.

        This equals S max(1, (norm / S) / max_grad_norm), where `norm` is the norm of the scaled gradient."""
        scale = None if self.scaler is None else self.scaler.value
        if self._clip is None:
            return scale
        return torch.maximum(norm / self._clip, self._one if scale is None else scale)

    @property
    def skipped_updates(self) -> int:
        """Return the number of updates skipped because of non-finite gradients. This waits for the device."""
        self.norms.count_skipped()
        return self.norms.skipped

    @property
    def skipped_in_a_row(self) -> int:
        """Return the number of updates skipped since the last applied update. This waits for the device."""
        self.norms.count_skipped()
        return self.norms.skipped_in_a_row

    def state_dict(self) -> dict[str, Any]:
        return self.norms.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.norms.load_state_dict(state)


class RecentNorms:
    """Ring buffer on the device of the gradient norms of the newest updates since the last call of `clear`, at most `rows` norms.

    An update whose norm is not finite was skipped. The host counts the skipped updates from the norms, which saves two operations on the
    device per update, compared with counters on the device. Each update writes its norm into a slot (an element) of the buffer, so nothing
    is copied. The host waits for the device only after `rows` updates without a call of `count_skipped`.

    skipped: number of skipped updates in the run. skipped_in_a_row: number of skipped updates since the last applied one. Both are as of
    the last call of `count_skipped`."""

    def __init__(self, rows: int, device: torch.device, dtype: torch.dtype) -> None:
        self.values = torch.zeros(rows, device=device, dtype=dtype)
        self._slots = self.values.unbind()
        self.count = self._counted = 0  # updates since the last `clear`, and those of them that `skipped` includes
        self.skipped = self.skipped_in_a_row = 0

    def next_slot(self) -> Tensor:
        """Count one more update. Return the slot for its norm: a view [] of the buffer, into which the caller writes. Call this once per
        update.

        This waits for the device if all norms in the buffer are uncounted."""
        rows = len(self._slots)
        if self.count - self._counted == rows:
            self.count_skipped()
        slot = self._slots[self.count % rows]
        self.count += 1
        return slot

    def read(self) -> Tensor:
        """Return the norms of the updates since the last `clear`, oldest first, [n] on the host. After more than `rows` updates, only the
        newest `rows` norms are returned. This waits for the device."""
        rows, found = len(self._slots), self.values.cpu()
        return found[: self.count] if self.count <= rows else found.roll(-(self.count % rows))

    def count_skipped(self) -> None:
        """Update `skipped` and `skipped_in_a_row` with the uncounted updates. This waits for the device if there are any."""
        new, self._counted = self.count - self._counted, self.count
        norms = self.read()[-new:].tolist() if new else []
        if norms and math.isfinite(sum(norms)):
            self.skipped_in_a_row = 0
            return
        for norm in norms:
            skipped = not math.isfinite(norm)
            self.skipped += skipped
            self.skipped_in_a_row = self.skipped_in_a_row + 1 if skipped else 0

    def clear(self) -> None:
        """Count the skipped updates (see `count_skipped`), then empty the buffer."""
        self.count_skipped()
        self.count = self._counted = 0

    def state_dict(self) -> dict[str, Any]:
        self.count_skipped()
        counts = {"skipped_updates": self.skipped, "skipped_in_a_row": self.skipped_in_a_row}
        return {**counts, "norms": {"count": self.count, "values": self.values.cpu().clone()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of `state_dict`. If the saved buffer has another size, keep the newest norms that fit. `count_skipped` does not
        count the loaded norms again."""
        values, self.count = state["norms"]["values"], state["norms"]["count"]
        if len(values) != len(self._slots):
            values = values.roll(-(self.count % len(values))) if self.count > len(values) else values[: self.count]
            values = values[-len(self._slots) :]
            self.count = len(values)
        self.values.zero_()
        self.values[: len(values)] = values.to(self.values)
        self._counted = self.count
        self.skipped, self.skipped_in_a_row = state["skipped_updates"], state["skipped_in_a_row"]


def total_norm(grads: list[Tensor | None], out: Tensor | None = None) -> Tensor:
    """Return the Euclidean norm of all gradients together, [] on the device. The norm is also written to `out`, if given."""
    norms = torch._foreach_norm([grad for grad in grads if grad is not None])
    return torch.linalg.vector_norm(torch.stack(norms), out=out)
