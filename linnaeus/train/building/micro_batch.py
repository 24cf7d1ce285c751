"""`trainer.micro_batch_size=auto`: find the largest micro-batch that fits into the memory of the GPU.

Trial updates of increasing size are made on a copy of everything (`trial_update.py`), until one does not fit. The sizes are the divisors of
the samples of one process in an update. They increase, because a trial that fails leaves references to its activations, so that a later
trial would have less memory; this way the one that fails is the last. All sizes together cost about twice the largest.

The trials run before compiling, because each size would be compiled for minutes. A compiled model fuses operations and stores fewer
activations, so as a rule it needs no more memory.

The number is a part of the saved configuration. A later start reads it there, also on another device."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from typing import TypeVar

from linnaeus.config.choices import AUTO
from linnaeus.config.schema import ANYWHERE, Config
from linnaeus.distributed import DistributedContext
from linnaeus.distributed.tree_reduction import copies_of_gradients
from linnaeus.errors import ConfigError, counted
from linnaeus.rundir import RunDirectory
from linnaeus.schedule import accumulation_steps
from linnaeus.schedule.length import tree_block
from linnaeus.train.building.planning import resolve_schedule
from linnaeus.train.building.trial_update import MARGIN, DeviceMemory, Trial, device_memory, fits, kept_generators, silenced, with_trainer
from linnaeus.workloads.base import Workload

log = logging.getLogger("linnaeus")

T = TypeVar("T")
KEY = "trainer.micro_batch_size"
GIB = 2**30


def find_micro_batch(config: Config, context: DistributedContext, directory: RunDirectory) -> Config:
    """Return `config` with a value in place of `trainer.micro_batch_size=auto`, also in the configuration that `directory` saves. Return
    `config` itself if the setting is not `auto`.

    The value is that of the run in `directory`, a number or None. For a new run it is found by trials; on the CPU it is the whole batch of
    a process. Raise `ConfigError` on every process if even the smallest micro-batch does not fit."""
    if config.trainer.micro_batch_size != AUTO:
        return config
    if KEY in directory.kept:
        size = directory.kept[KEY]
        log.info("micro_batch_size=auto: %s, from the saved configuration of this run", "null" if size is None else size)
        return with_trainer(config, micro_batch_size=size)
    accumulation_steps(config, context.world_size)  # refuses a global batch that cannot be divided among the processes
    share = config.trainer.global_batch_size // context.world_size
    memory = device_memory(context.device)
    if memory is None:
        size, reason = share, "the memory of a CPU is not limited here"
    else:
        with silenced(), kept_generators(context.device):
            size, used = largest(config, context, directory, share, memory)
        memory.release()
        reason = f"{used / GIB:.1f} GiB of {memory.total / GIB:.1f} GiB"
    log.info("micro_batch_size=auto: %d of %s per process, %s", size, counted(share, "sample"), reason)
    directory.choose({KEY: size})
    return with_trainer(config, micro_batch_size=size)


def largest(config: Config, context: DistributedContext, directory: RunDirectory, share: int, memory: DeviceMemory) -> tuple[int, float]:
    """Return (the largest micro-batch size that fits on every process, the bytes that its trial has used at most on a process).

    `share`: samples of one process in an update. Raise `ConfigError` on every process if no size fits, or if the parameters of the model
    are divided over the processes."""
    # one process with its share of the global batch, without collectives: in them the others would wait for a process that has failed
    alone = with_trainer(
        config,
        global_batch_size=share,
        micro_batch_size=share,
        compile=False,
        deterministic=bool(config.trainer.deterministic),
    )
    # of the run: the smaller global batch would give another number of updates, which phases in steps may not cover
    plan = functools.partial(resolve_schedule, with_trainer(config, micro_batch_size=share), context=context)
    found, used = 0, 0.0
    with memory.limited():
        trial, built = fits_everywhere(context, lambda: Trial(alone, context.alone(), directory.path, plan))
        sizes = [1] if trial is None else allowed_sizes(alone, trial.workload)
        if built and trial is not None:
            if trial.t.model.shard(context):
                raise ConfigError(f"{KEY}=auto cannot try a model that is divided over the processes (head.sharded); give a number")
            for size in sizes:
                peak = peak_of_trial(trial, size, further_copies(config, context, share // size), context, memory)
                if peak is None:
                    break
                found, used = size, peak
    if not found:
        raise ConfigError(
            f"{KEY}=auto: an update in micro-batches of {counted(sizes[0], 'sample')} does not fit into {memory.limit / GIB:.1f} GiB, the "
            f"free memory of the device without {MARGIN:.0%} of the whole; {smaller(config)}"
        )
    return found, used


def peak_of_trial(trial: Trial, size: int, copies: int, context: DistributedContext, memory: DeviceMemory) -> float | None:
    """Return the bytes that updates in micro-batches of `size` samples use at most on a process; None if they do not fit on every process.

    copies: as in `Trial.update_twice`."""
    memory.release()
    has_gradients = size < trial.config.trainer.global_batch_size or context.world_size > 1
    _, ok = fits_everywhere(context, functools.partial(trial.update_twice, size, has_gradients, copies))
    return max(context.all_gather(memory.peak())) if ok else None


def fits_everywhere(context: DistributedContext, work: Callable[[], T]) -> tuple[T | None, bool]:
    """Call `work` on every process. Return (its result on this process, or None if it does not fit into the memory of this process; True if
    it fits into the memory of every process).

    If `work` raises an error other than out of memory on a process, raise it there, and `ConfigError` with its text on the others, which
    would wait for that process in their next collective."""
    result, ok, failure = None, False, None
    try:
        result, ok = fits(work)
    except Exception as error:
        failure = error
    answers = context.all_gather((ok, None if failure is None else f"{type(failure).__name__}: {failure}"))
    if failure is not None:
        raise failure
    for rank, (_, text) in enumerate(answers):
        if text is not None:
            raise ConfigError(f"{KEY}=auto: the trial has failed on process rank {rank}: {text}")
    return result, all(ok for ok, _ in answers)


def allowed_sizes(config: Config, workload: Workload) -> list[int]:
    """Return the possible micro-batch sizes in increasing order. config: configuration of a trial, whose global batch has only the samples
    of one process."""
    share = config.trainer.global_batch_size
    if config.weighting.name == "surgery":  # needs one micro-batch in an update
        return [share]
    multiple = math.lcm(workload.micro_batch_multiple, 2 if workload.pairs_samples else 1)
    return [size for size in range(multiple, share + 1, multiple) if share % size == 0]


def further_copies(config: Config, context: DistributedContext, accumulation: int) -> int:
    """Return how many copies of the gradients the run holds beside `.grad`. accumulation: micro-batches of an update on a process."""
    if config.trainer.deterministic == ANYWHERE:
        return copies_of_gradients(accumulation, tree_block(accumulation * context.world_size), context.world_size)
    gathers = config.trainer.deterministic and context.world_size > 1  # the gradients of all processes, see `distributed.ddp`
    return context.world_size if gathers else 0


def smaller(config: Config) -> str:
    """Return the settings that reduce the memory of a run and are not set yet, for a message."""
    trainer = config.trainer
    settings = ["trainer.precision=bf16"] if trainer.precision in ("float32", "float64") else []
    settings += ["trainer.activation_checkpointing=blocks"] if trainer.activation_checkpointing == "none" else []
    settings += ["optimizer.state_precision=bf16"] if getattr(config.optimizer, "state_precision", "") == "float32" else []
    return f"set {' or '.join(settings)}, or use a smaller model" if settings else "use a smaller model"
