"""Build the objects that sum gradients and other values over micro-batches and processes, in the order of `trainer.deterministic`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from linnaeus.config.contracts import class_name
from linnaeus.config.schema import ANYWHERE, Config
from linnaeus.distributed import DistributedContext
from linnaeus.distributed.ddp import wrap_ddp
from linnaeus.distributed.row_shards import RowShards
from linnaeus.distributed.summation_tree import SumOrder, sum_order
from linnaeus.distributed.synchronisation import GradientReduction
from linnaeus.distributed.tree_reduction import TreeReduction
from linnaeus.errors import ConfigError, counted
from linnaeus.schedule.length import listed, possible_processes, tree_block
from linnaeus.train.building.freezing import batch_statistics, changing_buffers
from linnaeus.train.building.planning import Plan
from linnaeus.workloads.base import Model

log = logging.getLogger("linnaeus")


def build_order(config: Config, context: DistributedContext, plan: Plan) -> SumOrder:
    """Return the order of the sums over micro-batches and processes."""
    anywhere = config.trainer.deterministic == ANYWHERE
    return sum_order(context, plan.accumulation, tree_block(plan.accumulation * context.world_size) if anywhere else None)


def check_anywhere(config: Config, model: Model) -> None:
    """Raise `ConfigError` if `trainer.deterministic=anywhere` cannot give the same bits on any number of processes.

    This is so with batch statistics, which depend on the order of the micro-batches of one process; with a weighting that is limited to one
    micro-batch per process; and with a model that sums floats over the forward passes of a process."""
    if config.trainer.deterministic != ANYWHERE:
        return
    names, owner = batch_statistics(model), class_name(type(model))
    if names:
        reason = f"the model has {counted(len(names), 'layer')} with batch statistics, such as {names[0]}: freeze them"
    elif config.weighting.name == "surgery":
        reason = "weighting=surgery needs one micro-batch per process: choose another weighting"
    elif not model.exact_counts:
        reason = f"{owner} adds floats over the forward passes of a process: choose another model"
    else:
        return
    raise ConfigError(f"trainer.deterministic=anywhere: {reason}, or use trainer.deterministic=true")


def build_reduction(
    config: Config, model: Model, context: DistributedContext, plan: Plan, order: SumOrder, shards: RowShards
) -> tuple[Callable[..., Any], GradientReduction]:
    """Return (callable that runs the forward pass, object that sums the gradients of an update). Log the memory that a fixed order
    costs. shards: parameters that are divided over the processes.

    Raise `ConfigError` if gradients are to be summed in a fixed order and in bf16."""
    in_bf16, fixed = model.reduced_in_bf16(), config.trainer.deterministic
    if in_bf16 and fixed:
        value = fixed if fixed == ANYWHERE else "true"
        raise ConfigError(f"head.reduce_precision=bf16 is not possible with trainer.deterministic={value}; use trainer.deterministic=false")
    if not order.anywhere:
        return wrap_ddp(model, context, changing_buffers(model), fixed is True, shards.rows, in_bf16)
    reduction = TreeReduction(model, context, order.block, plan.accumulation)
    micro_batches = plan.accumulation * context.world_size
    size = sum(parameter.numel() * parameter.element_size() for parameter in reduction.parameters) * reduction.copies / 2**20
    log.info(
        "deterministic=anywhere: %d micro-batches of an update are summed in one tree, with the same bits on %s processes; %d more copies "
        "of the gradients are kept (%.0f MiB)%s",
        micro_batches, listed(possible_processes(micro_batches)), reduction.copies, size,
        f", with {counted(torch.get_num_threads(), 'CPU thread')} per process" if context.device.type == "cpu" else "",
    )  # fmt: skip
    return model, reduction
