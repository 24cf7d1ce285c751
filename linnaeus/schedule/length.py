"""Compute the length of a run in steps, and the batch sizes, before the first batch is read.

The length depends only on the number of samples and the global batch size, not on the number of processes or the gradient accumulation, so
schedules can be computed from the length."""

from collections.abc import Sequence
from dataclasses import dataclass

from linnaeus.config.choices import AUTO
from linnaeus.config.schema import ANYWHERE, Config
from linnaeus.durations import Duration
from linnaeus.errors import ConfigError

MOST_STEPS = 10**9  # at 1 ms an update, 11 days; the steps of an event are listed at the start, and longer lists fill the memory


@dataclass(frozen=True)
class TrainingLength:
    """Number of optimizer updates of one epoch (`steps_per_epoch`) and of the whole run (`total_steps`)."""

    steps_per_epoch: int
    total_steps: int


def training_length(config: Config, dataset_size: int) -> TrainingLength:
    """Return the number of updates per epoch and of the run, for `dataset_size` training samples.

    Raise `ConfigError` if the run would have no update, or more than `MOST_STEPS`."""
    per_epoch = steps_per_epoch(config, dataset_size)
    text = config.trainer.length
    total = Duration.parse(text, "trainer.length").to_steps(0, per_epoch)
    if total < 1:
        raise ConfigError(f"trainer.length is {text}; it must be at least 1 step")
    if total > MOST_STEPS:
        raise ConfigError(f"trainer.length is {text}, which is {total:,} updates; it must be at most {MOST_STEPS:,}")
    return TrainingLength(per_epoch, total)


def training_samples(config: Config, dataset_size: int) -> int:
    """Return the number of samples that an epoch uses: `dataset_size`, or `trainer.limit_train_samples` if that is smaller."""
    return min(dataset_size, config.trainer.limit_train_samples or dataset_size)


def validation_samples(config: Config, dataset_size: int) -> int:
    """Return the number of samples in a validation pass: `dataset_size`, or `trainer.limit_validation_samples` if that is smaller."""
    return min(dataset_size, config.trainer.limit_validation_samples or dataset_size)


def steps_per_epoch(config: Config, dataset_size: int) -> int:
    """Return the number of updates of one epoch: ceil(N / B) with `data.last_batch=keep`, floor(N / B) with `drop`.

    N is the number of samples that an epoch uses, B the global batch size. Raise `ConfigError` if the result would be 0."""
    batch = config.trainer.global_batch_size
    if dataset_size < 1:
        raise ConfigError(f"data.name={config.data.name} has no training samples; check the split and the filters of the data")
    dataset_size = training_samples(config, dataset_size)
    if config.data.last_batch == "keep":
        return -(-dataset_size // batch)
    if dataset_size < batch:
        raise ConfigError(
            f"trainer.global_batch_size={batch} is larger than the {dataset_size} training samples and data.last_batch=drop leaves nothing;"
            f" use trainer.global_batch_size={dataset_size} or less, or data.last_batch=keep"
        )
    return dataset_size // batch


def micro_batch_size(config: Config, world_size: int) -> int:
    """Return `trainer.micro_batch_size`; if it is null, the global batch size divided by the number of process ranks."""
    return given_micro_batch(config) or config.trainer.global_batch_size // world_size


def given_micro_batch(config: Config) -> int | None:
    """Return `trainer.micro_batch_size` if it is a number, otherwise None. A number replaces `auto` before a run is planned; `auto` counts
    as null where no run starts, as in the check of a sweep's settings."""
    size = config.trainer.micro_batch_size
    return None if isinstance(size, str) else size


def validation_batch_size(config: Config) -> int:
    """Return the number of samples in a validation batch of one process.

    This is `data.validation_batch`. If that is null, it is `trainer.micro_batch_size`; if that is null too, the global batch size, but at
    most 64. The size does not depend on the number of processes, so the validation results do not depend on it either."""
    return config.data.validation_batch or given_micro_batch(config) or min(64, config.trainer.global_batch_size)


def accumulation_steps(config: Config, world_size: int) -> int:
    """Return the number of micro-batches per update on one process.

    Raise `ConfigError`, with the nearest valid values, if the global batch does not divide into whole micro-batches, or if the bits of the
    gradients would depend on the number of processes although `trainer.deterministic` is `anywhere`."""
    batch, micro = config.trainer.global_batch_size, given_micro_batch(config)
    if config.trainer.deterministic == ANYWHERE and config.trainer.micro_batch_size != AUTO:
        _check_tree(batch, micro, world_size)
    unit = world_size if micro is None else micro * world_size
    if batch % unit == 0:
        return 1 if micro is None else batch // unit
    below, above = batch // unit * unit, -(-batch // unit) * unit
    nearest = f"{below} or {above}" if below else f"{above}"
    if micro is None:
        raise ConfigError(f"trainer.global_batch_size={batch} cannot be divided among {world_size} processes; use {nearest}")
    fits = f", or trainer.micro_batch_size={_fitting_micro_batch(batch, micro, world_size)}" if batch % world_size == 0 else ""
    raise ConfigError(
        f"trainer.global_batch_size={batch} is not a multiple of trainer.micro_batch_size x processes = {micro} x {world_size} = {unit};"
        f" use trainer.global_batch_size={nearest}{fits}"
    )


def tree_block(micro_batches: int) -> int:
    """Return the largest odd divisor of `micro_batches`, the number of micro-batches in a global batch.

    With `trainer.deterministic=anywhere`, blocks of this many consecutive micro-batches are summed from left to right, and the sums of
    the blocks are added in a binary tree."""
    return micro_batches // (micro_batches & -micro_batches)


def possible_processes(micro_batches: int) -> list[int]:
    """Return the numbers of processes that give the same bits: the powers of two that divide `micro_batches`."""
    return [1 << power for power in range((micro_batches & -micro_batches).bit_length())]


def _check_tree(batch: int, micro: int | None, world_size: int) -> None:
    """Raise `ConfigError` if `micro` is None, or if `world_size` processes cannot share the binary tree of sums over the micro-batches of a
    global batch. Do nothing if `batch` is not a multiple of `micro`."""
    if micro is None:
        fits = _fitting_micro_batch(batch, max(2, batch // 8), 1)
        raise ConfigError(
            "trainer.deterministic=anywhere needs trainer.micro_batch_size, because null depends on the number of processes; with "
            f"trainer.micro_batch_size={fits} these may be {listed(possible_processes(batch // fits))}"
        )
    possible = possible_processes(batch // micro) if batch % micro == 0 else [world_size]
    if world_size not in possible:
        raise ConfigError(
            f"trainer.deterministic=anywhere: {world_size} processes cannot share the {batch // micro} micro-batches of an update in a "
            f"binary tree; use {listed(possible)}"
        )


def listed(numbers: Sequence[int]) -> str:
    """Return numbers as text: `1, 2 or 4`."""
    return " or ".join(filter(None, [", ".join(map(str, numbers[:-1])), str(numbers[-1])]))


def _fitting_micro_batch(batch: int, micro: int, world_size: int) -> int:
    """Return the largest micro-batch size up to `micro` that divides `batch` / `world_size`, the number of samples on one rank."""
    share = batch // world_size
    return next(m for m in range(min(micro, share), 0, -1) if share % m == 0)
