"""Sum the gradients over the processes, by default with DDP. On request DDP sums in rank order, so that a resumed run gives the same
bits."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable, Collection
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from linnaeus.distributed.context import DistributedContext
from linnaeus.distributed.synchronisation import DDPReduction

log = logging.getLogger("linnaeus")


# the argument was renamed in torch 2.14
_SYNC_BUFFERS = next(
    name for name in ("forward_sync_buffers", "broadcast_buffers") if name in inspect.signature(DistributedDataParallel.__init__).parameters
)


def wrap_ddp(
    model: nn.Module,
    context: DistributedContext,
    changing_buffers: Collection[str],
    deterministic: bool,
    sharded: Collection[str] = (),
    in_bf16: Collection[str] = (),
) -> tuple[Callable[..., Any], DDPReduction]:
    """Return (callable that runs the forward pass, reduction of its gradients). With one process the callable is the model itself.

    changing_buffers: names of the buffers that forward passes change; DDP broadcasts them at each forward. deterministic: sum the gradients
    in rank order. sharded: names of the parameters that are divided over the processes, whose gradients are not reduced. in_bf16: names of
    the parameters whose gradients are exchanged in bf16; not together with `deterministic`."""
    if context.world_size == 1:
        return model, DDPReduction(1, contextlib.nullcontext)
    own = [parameter for name, parameter in model.named_parameters() if name in sharded]
    if not any(parameter.requires_grad for name, parameter in model.named_parameters() if name not in sharded):
        return model, DDPReduction(context.world_size, contextlib.nullcontext, own)  # DDP refuses a model without a gradient to reduce
    constant = [name for name, _ in model.named_buffers() if name not in changing_buffers]
    # buffers would be broadcast at each forward
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, [*constant, *sharded])
    ddp = DistributedDataParallel(
        model,
        device_ids=[context.local_rank] if context.device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        # costs a collective per step, so only for models with batch statistics
        **cast(dict[str, Any], {_SYNC_BUFFERS: bool(changing_buffers)}),
    )
    if context.world_size > 2 and not deterministic and context.is_master:
        log.warning("%d processes: a resumed run agrees to float rounding; for equal bits set trainer.deterministic", context.world_size)
    if deterministic:
        ddp.register_comm_hook(None, mean_in_rank_order)
    elif in_bf16:
        ddp.register_comm_hook([parameter for name, parameter in model.named_parameters() if name in in_bf16], mean_in_bf16)
    return ddp, DDPReduction(context.world_size, ddp.no_sync, own)


def mean_in_rank_order(state: None, bucket):  # type: ignore[no-untyped-def]  # torch refuses annotations that are strings
    """Average the gradients of all ranks, summed in rank order. This is a DDP communication hook: GradBucket -> Future[Tensor].

    In an all-reduce the order of additions depends on the bucket sizes, which DDP changes after the first step. With W ranks, this hook
    transfers W times the size of the gradients."""
    import torch.distributed as dist

    own = bucket.buffer()
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    gathered = dist.all_gather(parts, own, async_op=True).get_future()

    def add(_: Any) -> Tensor:
        total = parts[0]
        for part in parts[1:]:
            total += part
        return own.copy_(total).div_(len(parts))

    return gathered.then(add)


def mean_in_bf16(chosen: list[nn.Parameter], bucket):  # type: ignore[no-untyped-def]  # as above
    """Average the gradients over the processes, those of the parameters `chosen` in bf16 and all others in their own dtype. This is a DDP
    communication hook: GradBucket -> Future[Tensor].

    With W processes each gradient is divided by W before it is rounded and summed. The two messages of a bucket are sent at the same time.
    With two processes the other gradients have the same bits as without this hook."""
    import torch.distributed as dist

    names, whole = {id(parameter) for parameter in chosen}, bucket.buffer().div_(dist.get_world_size())
    halves = [gradient for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True) if id(parameter) in names]
    others = [gradient for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True) if id(parameter) not in names]
    if not halves:
        return dist.all_reduce(whole, async_op=True).get_future().then(lambda done: done.value()[0])
    packed = torch.cat([gradient.flatten().bfloat16() for gradient in halves])
    first = dist.all_reduce(packed, async_op=True).get_future()
    unchanged = torch.cat([gradient.flatten() for gradient in others]) if others else whole.new_zeros(0)
    last = dist.all_reduce(unchanged, async_op=True).get_future() if others else first

    def unpack(_: Any) -> Tensor:
        first.wait()
        for gradients, message in ((halves, packed), (others, unchanged)):
            for gradient, part in zip(gradients, message.split([gradient.numel() for gradient in gradients]), strict=True):
                gradient.copy_(part.view_as(gradient))
        return whole

    return last.then(unpack)
