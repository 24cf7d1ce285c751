"""Build the parts of a run that read data: sampler, worker processes and loader; check the datasets."""

from __future__ import annotations

from typing import Any

from linnaeus.config.contracts import check_members, class_name
from linnaeus.config.schema import ANYWHERE, Config
from linnaeus.data.loader import build_loaders
from linnaeus.data.sampler import PositionSampler
from linnaeus.data.samples import PositionedDataset
from linnaeus.data.workers import WorkerPool
from linnaeus.distributed import DistributedContext
from linnaeus.errors import ConfigError
from linnaeus.schedule.length import micro_batch_size, training_samples
from linnaeus.train.building.planning import Plan
from linnaeus.workloads.base import Workload


def check_datasets(workload: Workload, plan: Plan) -> None:
    """Raise `ConfigError` if the workload did not set both datasets, or if the validation set is empty although the run validates."""
    check_members(workload, Workload)
    for name in ("train_set", "validation_set"):
        check_members(getattr(workload, name), PositionedDataset, f"{class_name(type(workload))}.{name} is")
    if plan.resolved.validate.ever_due and not len(workload.validation_set):
        raise ConfigError("data: the validation set is empty; give it samples, or set schedule.validate=[] schedule.validate_at_end=false")


def build_sampler(config: Config, context: DistributedContext, workload: Workload, plan: Plan) -> PositionSampler:
    """Return the sampler of this rank's training micro-batches.

    Raise `ConfigError` if `trainer.limit_train_samples` leaves out samples of a training set that is resampled."""
    size, resampling = training_samples(config, workload.train_size), workload.train_set.resampling()
    if resampling is not None and size < workload.train_size:
        raise ConfigError(f"trainer.limit_train_samples={size} cannot limit resampled data; set data.sampling=natural, or leave it out")

    def groups(epoch: int) -> Any:
        level = plan.ops.get_mixup_group_level(epoch)
        found = workload.train_set.groups(level) if workload.pairs_samples else None
        return found if found is None else found[:size]

    return PositionSampler(
        size,
        config.seed,
        config.trainer.global_batch_size,
        micro_batch_size(config, context.world_size),
        plan.length.steps_per_epoch,
        plan.length.total_steps,
        context.rank,
        context.world_size,
        groups,
        resampling,
        workload.train_set.record_blocks(),
        contiguous=config.trainer.deterministic == ANYWHERE,
    )


def build_workers(config: Config, context: DistributedContext, workload: Workload) -> WorkerPool | None:
    """Return the worker processes that read training and validation batches, not started yet; None if `trainer.num_workers` is 0."""
    if config.trainer.num_workers == 0:
        return None
    pinned = config.trainer.pin_memory and context.device.type == "cuda"
    return WorkerPool([workload.train_set, workload.validation_set], config.trainer.num_workers, pinned)


def build_train_loader(config: Config, workload: Workload, sampler: PositionSampler, workers: WorkerPool | None) -> Any:
    """Return an iterable of the training micro-batches of this rank. `workers`: processes that read the batches; None: this process reads
    them."""
    return build_loaders(workload.train_set, sampler, workers, config.trainer.prefetch)
