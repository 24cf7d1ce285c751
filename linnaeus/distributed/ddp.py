"""DDP around the bare model, with gradients reduced in rank order on request."""

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

log = logging.getLogger("linnaeus")

# its name from torch 2.14 on, and before
_SYNC_BUFFERS = next(
    name for name in ("forward_sync_buffers", "broadcast_buffers") if name in inspect.signature(DistributedDataParallel.__init__).parameters
)


def wrap_ddp(
    model: nn.Module, context: DistributedContext, changing_buffers: Collection[str], deterministic: bool
) -> tuple[Callable[..., Any], Callable[[], Any]]:
    """Return the callable the loop runs forward and its `no_sync`: the model itself in a single process, else wrapped for DDP.

    `changing_buffers`: names of the buffers that forward passes change, which DDP sends at each forward. `deterministic`: reduce the
    gradients in rank order."""
    if context.world_size == 1:
        return model, contextlib.nullcontext
    tables = [name for name, _ in model.named_buffers() if name not in changing_buffers]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, tables)  # or it would send them at each forward
    ddp = DistributedDataParallel(
        model,
        device_ids=[context.local_rank] if context.device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        # nothing but batch statistics changes in training, and it costs a collective a step
        **cast(dict[str, Any], {_SYNC_BUFFERS: bool(changing_buffers)}),
    )
    if context.world_size > 2 and not deterministic and context.is_master:
        log.warning(
            "%d processes: a resumed run agrees to float rounding; bit for bit takes trainer.deterministic=true", context.world_size
        )
    if deterministic:
        ddp.register_comm_hook(None, mean_in_rank_order)
    return ddp, ddp.no_sync


def mean_in_rank_order(state: None, bucket):  # type: ignore[no-untyped-def]  # torch refuses annotations that are strings
    """DDP communication hook (GradBucket -> Future[Tensor]): gather every rank's bucket and add them in rank order. An all-reduce
    may add in an order that depends on the size of the buckets, which DDP changes after the first step; this costs W times the
    traffic."""
    import torch.distributed as dist

    mine = bucket.buffer()
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    gathered = dist.all_gather(parts, mine, async_op=True).get_future()

    def add(_: Any) -> Tensor:
        total = parts[0]
        for part in parts[1:]:
            total += part
        return mine.copy_(total).div_(len(parts))

    return gathered.then(add)
