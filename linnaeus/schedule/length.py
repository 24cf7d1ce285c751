"""The length of a run, known exactly before the first batch: it depends on the number of samples and the global batch alone,
not on processes, accumulation or grouping, so schedules that depend on it cannot be circular.
"""

from __future__ import annotations

from dataclasses import dataclass

from linnaeus.config.schema import Config
from linnaeus.durations import Duration
from linnaeus.errors import ConfigError


@dataclass(frozen=True)
class TrainingLength:
    """`epochs` counts the last one although `total_steps` may cut it short."""

    steps_per_epoch: int
    total_steps: int
    epochs: int


def training_length(config: Config, dataset_size: int) -> TrainingLength:
    """Updates of an epoch and of the run for `dataset_size` training samples. Raises `ConfigError` when there are none."""
    per_epoch = steps_per_epoch(config, dataset_size)
    text = config.trainer.length
    duration = Duration.parse(text, "trainer.length")
    if duration.unit not in ("steps", "epochs"):
        raise ConfigError(f"trainer.length is {text}; the length of the run is in epochs or steps: 20epochs or 5000steps")
    total = duration.to_steps(0, per_epoch)
    if total < 1:
        raise ConfigError(f"trainer.length is {text}, which is no update at all; make it at least 1steps")
    return TrainingLength(per_epoch, total, -(-total // per_epoch))


def steps_per_epoch(config: Config, dataset_size: int) -> int:
    """ceil(N / global batch) with `data.last_batch=keep`, floor with `drop`."""
    batch = config.trainer.global_batch_size
    if dataset_size < 1:
        raise ConfigError(f"data.name={config.data.name} has no training samples; check the split and the filters of the data")
    if config.data.last_batch == "keep":
        return -(-dataset_size // batch)
    if dataset_size < batch:
        raise ConfigError(
            f"trainer.global_batch_size={batch} is larger than the {dataset_size} training samples and data.last_batch=drop leaves nothing;"
            f" use trainer.global_batch_size={dataset_size} or less, or data.last_batch=keep"
        )
    return dataset_size // batch


def accumulation_steps(config: Config, world_size: int) -> int:
    """Micro-batches of one update on one process. Raises `ConfigError` with the nearest right values when it is no whole number."""
    batch, micro = config.trainer.global_batch_size, config.trainer.micro_batch_size
    at_once = micro * world_size
    if batch % at_once == 0:
        return batch // at_once
    below, above = batch // at_once * at_once, -(-batch // at_once) * at_once
    nearest = f"{below} or {above}" if below else f"{above}"
    fits = f", or trainer.micro_batch_size={_fitting_micro_batch(batch, micro, world_size)}" if batch % world_size == 0 else ""
    raise ConfigError(
        f"trainer.global_batch_size={batch} is not a multiple of trainer.micro_batch_size x processes = {micro} x {world_size} = {at_once};"
        f" use trainer.global_batch_size={nearest}{fits}"
    )


def _fitting_micro_batch(batch: int, micro: int, world_size: int) -> int:
    """The largest micro-batch up to the wished one (or the whole share of a process) that divides the global batch."""
    share = batch // world_size
    return next(m for m in range(min(micro, share), 0, -1) if share % m == 0)
