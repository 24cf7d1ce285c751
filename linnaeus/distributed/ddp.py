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
    model: nn.Module, context: DistributedContext, changing_buffers: Collection[str], deterministic: bool, sharded: Collection[str] = ()
) -> tuple[Callable[..., Any], DDPReduction]:
    """Return (callable that runs the forward pass, reduction of its gradients). With one process the callable is the model itself.

    changing_buffers: names of the buffers that forward passes change; DDP broadcasts them at each forward. deterministic: sum the gradients
    in rank order. sharded: names of the parameters that are divided over the processes, whose gradients are not reduced."""
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
