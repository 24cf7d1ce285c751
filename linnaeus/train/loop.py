"""`train_one_epoch`: the training loop, to be read from top to bottom.

A window is the list of micro-batches of one optimizer update on one process. For each window: count the valid labels of the whole
global batch, run forward and backward for each micro-batch, take the measurements that the task weights depend on, make the update, and
advance the counter (`TrainingProgress`). At the end of each step log, save, validate and stop if due (`step_end.py`). Between two step
ends nothing waits for the device.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from linnaeus.config.contracts import class_name
from linnaeus.data.loader import DevicePrefetcher
from linnaeus.distributed.summation_tree import BlockwiseSum
from linnaeus.errors import ConfigError
from linnaeus.randomness import seed_forward
from linnaeus.train import saving
from linnaeus.train.building.freezing import set_training
from linnaeus.train.state import Training
from linnaeus.train.step_end import end_step

Window = list[tuple[dict[str, Tensor], dict[str, Tensor]]]  # (host batch, device batch) per micro-batch


def train_one_epoch(training: Training, epoch: int) -> None:
    """Run the updates of `epoch` (0-based), starting at `progress.global_step`. Return early if the run is interrupted or stopped.

    Raise `RuntimeError` if the loader yields no update although some are planned."""
    t = training
    t.progress.start_training_epoch(epoch)
    t.sampler.set_epoch(epoch, t.progress.position_in_epoch)
    set_training(t.model)
    prefetcher = DevicePrefetcher(t.train_loader, t.device)
    first_step, times = t.progress.global_step, t.clock.updates
    if t.sections is not None:
        t.sections.between_steps(t)
    for window in windows(prefetcher, t.sampler.accumulation):
        t.watchdog.activity = "training"
        if t.sections is not None:
            t.sections.window_ready()
        train_one_step(t, window)
        if t.compilation is not None and not t.sync.data_unreadable:
            step = t.progress.global_step - 1
            work = "update of the task weights" if t.ops.should_update_gradnorm(step + 1) else "update"  # famo: a forward without gradients
            t.compilation.observe(work, t.sampler.samples_in(step), t.ops.get_image_size(step))
        t.clock.waiting, prefetcher.waited = t.clock.waiting + prefetcher.waited, 0.0
        times.moments.append(times.now())
        end_step(t)
        if t.sections is not None:
            t.sections.between_steps(t)
        if not t.run.running:
            return
        t.watchdog.activity = "waiting for data"
    if t.progress.global_step == first_step:
        raise RuntimeError(f"epoch {epoch + 1}: the loader yielded no window although {len(t.sampler.steps())} updates were planned")
    t.checker.validate_epoch_steps(epoch, t.progress.global_step - epoch * t.sampler.steps_per_epoch)
    t.progress.end_epoch()


def windows(batches: Iterable[Any], accumulation: int) -> Iterator[Window | OSError]:
    """Yield lists of `accumulation` consecutive micro-batches; an incomplete list at the end is dropped.

    If `batches` raises `OSError`, yield the error as the last item."""
    window: Window = []
    try:
        for pair in batches:
            window.append(pair)
            if len(window) == accumulation:
                yield window
                window = []
    except OSError as error:
        yield error


def train_one_step(t: Training, window: Window | OSError) -> None:
    """Make one optimizer update from one window. `window` is an `OSError` if its data could not be read.

    If any rank cannot read its window, no rank makes the update and the run is interrupted."""
    if isinstance(window, OSError):
        t.sync.reduce_counts(torch.zeros(len(t.workload.tasks), dtype=torch.float64), unreadable=True)
        t.run.interrupt(t.sync.interruption_reason(window))
        return
    host_batches = [host for host, _ in window]
    if t.progress.global_step == t.first_step:
        check_entries(t, host_batches[0])
    for host in host_batches:
        t.workload.check_batch(host)
    own_valid = [checked_per_task(t, "valid_counts", t.workload.valid_counts(host)) for host in host_batches]
    valid = t.sync.reduce_counts(t.order.sum(own_valid))
    if t.sync.data_unreadable:
        t.run.interrupt(t.sync.interruption_reason())
        return
    if t.output.batches is not None:
        t.output.batches.window(t.progress.global_step + 1, host_batches, map(t.sampler.place, itertools.count()))
    update_on_window(t, window, valid)
    t.watchdog.step, t.watchdog.heartbeats = t.progress.global_step, t.watchdog.heartbeats + 1
    t.watchdog.long_timeout = False


def check_entries(t: Training, batch: dict[str, Tensor]) -> None:
    """Raise `ConfigError` if a batch of the training set lacks `weight` or `sample`, [B] each. Without this check the run could fail after
    days of training, when an alarm names the samples of an update."""
    if missing := [name for name in ("weight", "sample") if name not in batch]:
        name = class_name(type(t.workload.train_set))
        raise ConfigError(
            f"{name}.__getitems__ returns a batch without {' and '.join(missing)}; every batch needs weight and sample, [B] each"
        )


def checked_per_task(t: Training, member: str, values: Tensor) -> Tensor:
    """Return `values`, the result of the workload's method `member`. Raise `ConfigError` if the shape is not [T], one value per task.

    Without this check, a tensor of another shape would be broadcast without an error when it is added to a sum."""
    tasks = len(t.workload.tasks)
    if values.shape != (tasks,):
        name = f"{class_name(type(t.workload))}.{member}"
        raise ConfigError(f"{name} returns the shape {list(values.shape)}; it must be [{tasks}], one value for each of {t.workload.tasks}")
    return values


def update_on_window(t: Training, window: Window, valid: Tensor) -> None:
    """Run forward and backward for each micro-batch of `window`, then make the optimizer update and count it.

    `valid`: number of valid labels of each task in the global batch, float64 [T] on the host."""
    step = t.progress.global_step
    gradnorm, conflict = t.ops.should_update_gradnorm(step + 1), t.ops.resolved.conflict.due(step + 1)
    accumulate_gradients(t, window, valid, step, gradnorm=gradnorm, conflict=conflict)
    if step + 1 >= t.next_due and t.config.logger.alarms and t.ops.should_measure_update_ratio(step + 1):
        t.update_ratio.start()
    if t.output.writer is not None and t.output.writer.copying:
        saving.wait_for_copy(t)
    apply_update(t, window, step)
    t.tracker.add_update(tuple(valid.tolist()))
    samples = t.sampler.samples_in(step)
    t.progress.update_window(samples, len(window), count_units(t, samples, valid))


def accumulate_gradients(t: Training, window: Window, valid: Tensor, step: int, *, gradnorm: bool, conflict: bool) -> None:
    """Set the gradients to zero, run forward and backward for each micro-batch of `window`, and reduce the gradients over the processes.

    valid: as in `update_on_window`. step: number of updates before this one. gradnorm: True to also measure the gradients that the task
    weighting needs. conflict: True to also measure the gradients for the gradient conflict."""
    weights = t.weighting.weights
    denominators = t.workload.denominators(valid)
    factors = loss_factors(t.reduction.factor, tuple(denominators.tolist()), weights.dtype, weights.device)
    t.weighting_meter.start(step + 1, denominators, gradnorm, conflict)
    t.optimizers.zero_grad()
    t.update.start(step + 1)
    for number, (_, batch) in enumerate(window):
        seed_micro_batch(t, step, number)
        with t.reduction.micro_batch(last=number + 1 == len(window)):
            forward_backward(t, batch, factors)
    t.reduction.finish()


def apply_update(t: Training, window: Window, step: int) -> None:
    """Make the optimizer update number `step` + 1 with the accumulated gradients, then finish the measurements of the task weighting."""
    t.optimizers.lr = t.lr.at(step)
    t.update()
    t.weighting_meter.finish(loss_sums_after_update(t, window, step) if t.weighting_meter.requires_losses_after() else None)


@functools.lru_cache(maxsize=1)  # most updates of a run have the same counts
def loss_factors(factor: int, denominators: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return `factor` / N_t for each task t, [T] on the device. N_t is `denominators[t]`, or 1 if that is 0.

    The result is cached: do not change it in place."""
    factors = torch.tensor([factor / (number or 1.0) for number in denominators], dtype=dtype)
    # non_blocking: a blocking copy to a GPU waits for everything queued there, including the last update
    return factors.to(device, non_blocking=True)


def seed_micro_batch(t: Training, step: int, number: int) -> None:
    """Seed dropout and drop-path of micro-batch `number` of this process, by (seed, step, index of the micro-batch in the global batch)."""
    seed_forward(t.config.seed, step, t.sampler.place(number), t.device.type)


def forward_backward(t: Training, batch: dict[str, Tensor], factors: Tensor) -> None:
    """Run forward and backward of one micro-batch. The loss is sum_t w_t / N_t * (sum of the losses of task t).

    w_t is the weight of task t, N_t its denominator: the number of its valid labels in the global batch, unless the workload defines
    another. `factors` [T] is 1 / N_t, or W / N_t if the reduction averages the gradients of W processes. Raise `ConfigError` if the losses
    do not have a gradient."""
    batch = t.workload.prepare(batch)
    with t.precision.autocast():
        outputs = t.runner(batch)
    sums = checked_per_task(t, "loss_sums", t.workload.loss_sums(outputs, batch))
    if not sums.requires_grad:
        raise ConfigError(f"{class_name(type(t.workload))}.loss_sums returns a tensor without a gradient; do not detach it")
    t.weighting_meter.measure(sums, outputs, t.precision.loss_scale)
    t.precision.backward(sums, t.weighting.weights * factors)
    t.tracker.add_micro_batch(sums, outputs, batch, t.weighting.weights)


@torch.no_grad()
def loss_sums_after_update(t: Training, window: Window, step: int) -> Tensor:
    """Return the sums of the losses over `window` on this process, one for each task, float64 [T]; NaN if the update was skipped, because
    no loss has changed then.

    The forward passes use the weights after update `step`, and the same dropout masks as in update `step`. Buffers that a forward pass
    changes are restored: batch statistics, and counts for `Model.after_update`, which would count these samples twice."""
    buffers = list(t.model.buffers())
    saved = [buffer.clone() for buffer in buffers]
    total = BlockwiseSum(t.order.block)
    for number, (_, batch) in enumerate(window):
        seed_micro_batch(t, step, number)
        batch = t.workload.prepare(batch)
        with t.precision.autocast():
            outputs = t.model(batch)
        total.add(t.workload.loss_sums(outputs, batch).double())
    for buffer, value in zip(buffers, saved, strict=True):
        buffer.copy_(value)
    return torch.where(t.update.found_inf > 0, torch.nan, total.total())


def count_units(t: Training, samples: int, valid: Tensor) -> int:
    """Return the number of units, such as tokens, in a global batch of `samples` samples; 0 for a workload without units.

    If a task is named like the unit, the result is the number of valid labels of that task, which excludes padding. Otherwise the result is
    `samples` times the units per sample. `valid`: [T], number of valid labels of each task."""
    if t.workload.units is None:
        return 0
    name, per_sample = t.workload.units
    return int(valid[t.workload.tasks.index(name)]) if name in t.workload.tasks else per_sample * samples
