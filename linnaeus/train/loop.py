"""`train_one_epoch`: the loop, top to bottom.

Per window (the micro-batches of one update on this process): count the valid labels of the whole global batch, run each
micro-batch forward and backward, measure what the task weights go by, update, move the one counter, and at that boundary log, save,
validate and stop. Nothing between two boundaries waits for the device.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from linnaeus.data.loader import DevicePrefetcher
from linnaeus.randomness import seed_forward
from linnaeus.train import saving
from linnaeus.train.freezing import changing_buffers, set_training
from linnaeus.train.state import Training
from linnaeus.train.step_end import end_step

Window = list[tuple[dict[str, Tensor], dict[str, Tensor]]]  # (host batch, device batch) per micro-batch


def train_one_epoch(training: Training, epoch: int) -> None:
    """Run the updates of `epoch` from where `progress.global_step` stands. Return early when the run is interrupted or stopped."""
    t = training
    t.progress.start_training_epoch(epoch)
    t.sampler.set_epoch(epoch, t.progress.position_in_epoch)
    set_training(t.model)
    prefetcher = DevicePrefetcher(t.train_loader, t.device)
    before = t.progress.global_step
    for window in windows(prefetcher, t.sampler.accumulation):
        t.watchdog.doing = "training"
        train_one_step(t, window)
        t.clock.waiting, prefetcher.waited = t.clock.waiting + prefetcher.waited, 0.0
        end_step(t)
        if not t.run.running:
            return
        t.watchdog.doing = "waiting for data"
    if t.progress.global_step == before:
        raise RuntimeError(f"epoch {epoch + 1}: the loader yielded no window although {len(t.sampler.steps())} updates were planned")
    t.checker.validate_epoch_steps(epoch, t.progress.global_step - epoch * t.sampler.steps_per_epoch)
    t.progress.end_epoch()


def windows(batches: Iterable[Any], accumulation: int) -> Iterator[Window | OSError]:
    """Consecutive groups of `accumulation` micro-batches; an incomplete one at the end would be no update and is left out. A read
    that failed for good ends them with its error."""
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
    """Make one optimizer update from one window. If any rank cannot read its window, no rank makes the update and the run is
    interrupted."""
    if isinstance(window, OSError):
        t.sync.reduce_counts(torch.zeros(len(t.workload.tasks), dtype=torch.float64), unreadable=True)
        t.run.interrupt(t.sync.interruption_reason(window))
        return
    hosts = [host for host, _ in window]
    for host in hosts:
        t.workload.check_batch(host)
    valid = t.sync.reduce_counts(functools.reduce(torch.add, [t.workload.valid_counts(host) for host in hosts]))
    if t.sync.data_unreadable:
        t.run.interrupt(t.sync.interruption_reason())
        return
    if t.output.batches is not None:
        t.output.batches.window(t.progress.global_step + 1, hosts)
    update_from(t, window, valid)
    t.watchdog.step, t.watchdog.pulse = t.progress.global_step, t.watchdog.pulse + 1
    t.watchdog.first_update_is_done()


def update_from(t: Training, window: Window, valid: Tensor) -> None:
    """Forward, backward and update; `valid` [T]: labels per task in the whole global batch."""
    step = t.progress.global_step
    weights = t.weighting.weights
    shares = torch.tensor([t.context.world_size / (count or 1.0) for count in valid.tolist()], dtype=weights.dtype)
    # non_blocking: a blocking copy to a GPU waits for all that is queued there, the last update included.
    shares = shares.to(weights.device, non_blocking=True)
    t.weighting_meter.start(step + 1, valid, t.ops.should_update_gradnorm(step + 1), t.ops.should_measure_conflict(step + 1))
    t.optimizers.zero_grad()
    t.update.start(step + 1)
    for number, (_, batch) in enumerate(window):
        key_forward(t, step, number)
        with t.no_sync() if number + 1 < len(window) else contextlib.nullcontext():
            run_micro_batch(t, batch, shares)
    t.optimizers.set_lr(t.lr.at(step))
    saving.wait_for_copy(t)
    t.update()
    t.weighting_meter.finish(sums_after(t, window, step) if t.weighting_meter.requires_losses_after() else None)
    t.tracker.add_update(valid)
    samples = t.sampler.samples_in(step)
    t.progress.update_window(samples, len(window), units_in(t, samples, valid))


def units_in(t: Training, samples: int, valid: Tensor) -> int:
    """What a global batch of so many samples holds of the workload's units, `valid` [T] on the host being its labels: as many as the
    task of that name has, since a sample may be padded."""
    if t.workload.units is None:
        return 0
    name, each = t.workload.units
    return int(valid[t.workload.tasks.index(name)]) if name in t.workload.tasks else each * samples


def key_forward(t: Training, step: int, number: int) -> None:
    """Dropout and drop-path of a micro-batch follow from its place in the global batch."""
    seed_forward(t.config.seed, step, number * t.context.world_size + t.context.rank, t.device.type)


def run_micro_batch(t: Training, batch: dict[str, Tensor], shares: Tensor) -> None:
    """Forward and backward of one micro-batch: sum_t w_t / N_t * (sum of the task's losses), N_t over the global batch; `shares` [T]
    are the processes (DDP takes their mean) over N_t."""
    batch = t.workload.prepare(batch)
    with t.precision.autocast():
        outputs = t.runner(batch)
    sums = t.workload.loss_sums(outputs, batch)
    t.weighting_meter.measure(sums, outputs, t.precision.loss_scale)
    t.precision.backward(sums, t.weighting.weights * shares)
    t.tracker.add_micro_batch(sums, outputs, batch)


@torch.no_grad()
def sums_after(t: Training, window: Window, step: int) -> Tensor:
    """float64 [T]: this process's loss sums of the window that update `step` has just been made of, with its dropout; what a forward
    changes in the model (batch statistics) is put back."""
    statistics = list(changing_buffers(t.model).values())
    before = [buffer.clone() for buffer in statistics]
    total = torch.zeros_like(t.weighting.weights, dtype=torch.float64)
    for number, (_, batch) in enumerate(window):
        key_forward(t, step, number)
        batch = t.workload.prepare(batch)
        with t.precision.autocast():
            outputs = t.model(batch)
        total += t.workload.loss_sums(outputs, batch)
    for buffer, kept in zip(statistics, before, strict=True):
        buffer.copy_(kept)
    return total
