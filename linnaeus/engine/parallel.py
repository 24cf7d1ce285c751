"""How the model is run on several processes: DDP around the bare model, and gradients reduced in rank order on request."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from linnaeus.config.schema import Config
from linnaeus.distributed import DistributedContext
from linnaeus.engine.freezing import frozen_parts

log = logging.getLogger("linnaeus")

# its name from torch 2.14 on, and before
_SYNC_BUFFERS = next(
    name for name in ("forward_sync_buffers", "broadcast_buffers") if name in inspect.signature(DistributedDataParallel.__init__).parameters
)


def build_runner(config: Config, model: nn.Module, context: DistributedContext) -> tuple[Callable[..., Any], Callable[[], Any]]:
    """The callable the loop runs forward and its `no_sync`. Parts are compiled in place, before the wrapping, so that names stay
    the model's and validation runs the same code; a model names its parts in `compiled_parts()`."""
    if config.trainer.compile:
        for part in getattr(model, "compiled_parts", lambda: [model])():
            part.compile()
    if context.world_size == 1:
        return model, contextlib.nullcontext
    changing = changing_buffers(model)
    tables = [name for name, _ in model.named_buffers() if name not in changing]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, tables)  # or it would send them at each forward
    ddp = DistributedDataParallel(
        model,
        device_ids=[context.local_rank] if context.device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        # nothing but batch statistics changes in training, and it costs a collective a step
        **cast(dict[str, Any], {_SYNC_BUFFERS: bool(changing)}),
    )
    if context.world_size > 2 and not config.trainer.deterministic and context.is_master:
        log.warning(
            "%d processes: a resumed run agrees to float rounding; bit for bit takes trainer.deterministic=true", context.world_size
        )
    if config.trainer.deterministic:
        ddp.register_comm_hook(None, mean_in_rank_order)
    return ddp, ddp.no_sync


def batch_statistics(model: nn.Module) -> list[str]:
    """Names of the layers whose output in training depends on the other samples of a micro-batch."""
    frozen = {id(module) for _, part in frozen_parts(model) for module in part.modules()}
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    return [name for name, module in layers if id(module) not in frozen]


def changing_buffers(model: nn.Module) -> dict[str, Tensor]:
    """The buffers that forward passes change, by name: batch statistics. All others are tables, the same on every process."""
    layers = dict(model.named_modules())
    return {f"{name}.{kind}": buffer for name in batch_statistics(model) for kind, buffer in layers[name].named_buffers(recurse=False)}


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
