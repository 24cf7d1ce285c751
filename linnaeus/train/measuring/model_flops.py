"""Count the floating-point operations of a model for MFU and HFU, once, on the meta device, with the shapes of a real batch.

Torch's `FlopCounterMode` counts matrix products, convolutions and attention, forward and backward; a multiply-add is two operations.
Element-wise operations, norms and softmax are not counted, as in the usual formulas (nanoGPT, PaLM). The model runs uncompiled on meta
tensors in place of its weights. So nothing is computed, and the model, its gradients and the random generators are not changed.

With activation checkpointing, the backward repeats parts of the forward. HFU (hardware FLOPs utilisation) includes these repeated
operations, MFU (model FLOPs utilisation) does not. A repeated operation is recognised by `torch.is_grad_enabled()`, which during the
backward is True only in repeated operations."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from linnaeus.train.state import Training

log = logging.getLogger("linnaeus")

HEAVY = ("mm", "conv", "attention", "linear", "rnn", "lstm", "gru")  # parts of the names of operations that should be counted


@dataclass(frozen=True)
class Counted:
    """Number of floating-point operations of a forward and backward pass.

    per_sample: operations for one sample, without repeated ones. repeated: operations for one sample that activation checkpointing repeats.
    unknown: names of operations that are probably expensive but were not counted, such as custom kernels."""

    per_sample: float
    repeated: float = 0.0
    unknown: tuple[str, ...] = ()

    @property
    def executed(self) -> float:
        """Return the number of operations for one sample, including the repeated ones. HFU uses this number."""
        return self.per_sample + self.repeated


def count_flops(model: nn.Module, batch: Mapping[str, Tensor], samples: int) -> Counted:
    """Return the number of operations of forward and backward for one sample.

    `batch`: an input of the model; only shapes, strides and dtypes are used. `samples`: number of samples in `batch`.

    If the model cannot run on the meta device, for example because it reads values of its input, its exception is passed on."""
    from torch.utils.flop_counter import FlopCounterMode, flop_registry

    phase = _Phase()
    formulas = dict(flop_registry) | {torch.ops.aten.convolution_backward: convolution_backward_flops}
    counter = FlopCounterMode(display=False, custom_mapping={op: phase.counting(formula) for op, formula in formulas.items()})
    uncounted = _Uncounted(flop_registry)
    whole = _ForwardBackward(model, phase)
    weights = {name: _on_meta(value) for name, value in (*whole.named_parameters(), *whole.named_buffers())}
    inputs = {name: _on_meta(value) for name, value in batch.items()}
    with _eager(), torch.enable_grad(), uncounted, counter:
        torch.func.functional_call(whole, weights, (inputs,))
    total = counter.get_total_flops()
    unknown = {str(op) for op in getattr(counter, "get_unsupported_ops", tuple)()} | uncounted.names
    return Counted((total - phase.repeated) / samples, phase.repeated / samples, tuple(sorted(unknown)))


class _ForwardBackward(nn.Module):
    """Module whose forward runs the forward and the backward of `model`.

    `functional_call` replaces the weights during one call of a module. The backward must be inside that call, because activation
    checkpointing repeats forward operations in the backward."""

    def __init__(self, model: nn.Module, phase: _Phase) -> None:
        super().__init__()
        self.model, self.phase = model, phase

    def forward(self, batch: dict[str, Tensor]) -> None:
        """Run the forward and the backward of the model, with a gradient of 1 for each element of the outputs that require gradients."""
        outputs = pytree.tree_leaves(self.model(batch))
        tensors = [x for x in outputs if isinstance(x, Tensor) and x.requires_grad]
        self.phase.backward = True
        torch.autograd.backward(tensors, [torch.ones_like(x) for x in tensors])


def convolution_backward_flops(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, *rest: Any, **_: Any
) -> int:
    """Return the number of operations of the backward of a convolution.

    The arguments are those of `aten.convolution_backward`. The last argument, `output_mask`, states which gradients are computed. The
    gradient of `x` and the gradient of `weight` each need as many operations as the forward.

    Torch's own formula ignores groups: for a depthwise convolution of C channels its result is C times too large."""
    places = (x if transposed else grad).shape[2:].numel() * grad.shape[0]
    return 2 * weight.numel() * places * sum(rest[-1][:2])


class _Phase:
    """Counter of the forward operations that activation checkpointing repeats during the backward. backward: True once the backward has
    started. repeated: number of floating-point operations so far that were repetitions."""

    def __init__(self) -> None:
        self.backward, self.repeated = False, 0

    def counting(self, formula: Callable[..., int]) -> Callable[..., int]:
        """Return a function that returns the result of `formula`, a FLOP formula of `FlopCounterMode`, and adds this result to `repeated`
        if the operation is a repetition."""

        def call(*args: Any, **kwargs: Any) -> int:
            flops = formula(*args, **kwargs)
            if self.backward and torch.is_grad_enabled():
                self.repeated += flops
            return flops

        call._get_raw = True  # type: ignore[attr-defined]  # the formulas of the registry convert tensors to shapes themselves
        return call


class _Uncounted(TorchDispatchMode):
    """Mode that collects, in `names`, the operations that have no FLOP formula and are probably expensive: all custom operations, and
    operations of torch whose name contains a word of `HEAVY`."""

    def __init__(self, formulas: Mapping[Any, Any]) -> None:
        super().__init__()
        self.formulas, self.names = formulas, set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = getattr(func, "overloadpacket", func)
        if packet not in self.formulas:
            namespace, _, name = str(getattr(func, "name", lambda: str(func))()).partition("::")
            if namespace not in ("aten", "prim", "prims") or any(word in name for word in HEAVY):
                self.names.add(f"{namespace}::{name}")
        return func(*args, **(kwargs or {}))


def _on_meta(value: Tensor) -> Tensor:
    """Return a tensor with the shape, strides and dtype of `value` on the meta device; an `nn.Parameter` if `value` is an
    `nn.Parameter`."""
    meta = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return nn.Parameter(meta, requires_grad=value.requires_grad) if isinstance(value, nn.Parameter) else meta


@contextlib.contextmanager
def _eager() -> Iterator[None]:
    """Return a context manager in which compiled modules run uncompiled. This does not import the compiler."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


class FirstBatch:
    """Wrapper of the model `inner`. `batch`: the first batch passed to the wrapper, as tensors on the meta device; None before the first
    call."""

    def __init__(self, inner: Callable[..., Any]) -> None:
        self.inner = inner
        self.batch: dict[str, Tensor] | None = None

    def __call__(self, batch: Mapping[str, Tensor]) -> Any:
        if self.batch is None:
            self.batch = {name: _on_meta(value) for name, value in batch.items()}
        return self.inner(batch)


class FlopsOfRun:
    """Numbers of floating-point operations per sample of the model, one for each size of the training images.

    If the method `flops_per_sample()` of the model returns a number, that number is used; with activation checkpointing, only the repeated
    operations are counted. Otherwise all operations are counted: `watch` records the shapes of the next batch, and `of_last_update` counts
    the operations for these shapes."""

    def __init__(self) -> None:
        self._found: dict[int | None, Counted | None] = {}  # size of the images (None: constant) -> operations (None: unknown)
        self._first: FirstBatch | None = None

    def start(self, t: Training) -> None:
        """Record the shapes of the next batch, if operations must be counted."""
        if t.model.flops_per_sample() is None or t.config.trainer.activation_checkpointing != "none":
            self.watch(t)

    def watch(self, t: Training) -> None:
        """Replace `t.runner` by a wrapper that records the shapes of the next batch. `of_last_update` removes it."""
        self._first = t.runner = FirstBatch(t.runner)

    def of_last_update(self, t: Training) -> Counted | None:
        """Return the number of operations for one sample at the image size of the last update; None if unknown.

        If shapes of a batch were recorded, count the operations now, which takes up to two seconds. If no number is available for this
        size, start to record the shapes of the next batch and return None. Each size is counted once."""
        size, stated = t.ops.get_image_size(max(0, t.progress.global_step - 1)), t.model.flops_per_sample()
        if stated is not None and t.config.trainer.activation_checkpointing == "none":
            self._found.setdefault(size, Counted(float(stated)))
        if self._first is not None and self._first.batch is not None:
            if size not in self._found:
                self._found[size] = _count(t.model, self._first.batch, stated)
            if t.runner is self._first:  # otherwise another object wraps it; then it stays and passes calls on
                t.runner = self._first.inner
            self._first = None
        if size not in self._found and self._first is None:
            self.watch(t)
        return self._found.get(size)


def _count(model: nn.Module, batch: Mapping[str, Tensor], stated: float | None = None) -> Counted | None:
    """Return the number of operations for one sample; None if they cannot be counted, with the reason in the log.

    stated: number of operations that the model defines, without repeated ones. It replaces the counted number; None: count them."""
    try:
        # `Workload.prepare` may leave out `weight`: the batch is the input of the model
        found = count_flops(model, batch, len(batch.get("weight", next(iter(batch.values())))))
    except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        name = "MFU" if stated is None else "HFU"
        log.info("%s is not shown: the operations of the model cannot be counted without data (%s)", name, reason)
        return None if stated is None else Counted(float(stated))
    if stated is not None:
        return Counted(float(stated), found.repeated)
    log.debug("%.4g GFLOP of the model per sample, forward and backward", found.per_sample / 1e9)
    if found.unknown:
        log.info("MFU: these operations are not counted: %s", ", ".join(found.unknown))
    return found
