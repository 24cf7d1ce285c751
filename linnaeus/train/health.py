"""Pass the numbers of a row of metrics to the health monitor, and report its alarms: log, alarms.jsonl, denser reports."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from linnaeus.health import Alarm, Updates
from linnaeus.health.alarm import LISTED
from linnaeus.health.running_scale import WINDOW
from linnaeus.metrics.update_sums import UpdateLosses
from linnaeus.train.state import Training

log = logging.getLogger("linnaeus")

SAME_MIXTURE = 0.02  # change of the share of a source within the window that does not make its losses incomparable


def check_health(t: Training) -> dict[str, float]:
    """Look for trouble in the updates since the last row, report it, and return entries for the row. Call this once per row, on all ranks.

    This waits for the device. The gradient norms of these updates are forgotten afterwards."""
    norms = t.update.norms.read().double()
    t.update.norms.clear()
    limit = t.config.trainer.max_grad_norm
    row = {} if limit is None or not len(norms) else {"train/clip_rate": (norms > limit).double().mean().item()}
    if not t.config.logger.alarms or t.tracker.losses is None:
        return row
    found = updates(t.progress.global_step, t.tracker.losses, norms)
    raise_alarms(t, t.health.observe(dataclasses.replace(found, settled=settled(t, found.first_step, len(found.norms)))))
    return row | {"train/alarms": t.health.count}


def updates(step: int, losses: UpdateLosses, norms: Tensor) -> Updates:
    """Return the numbers of the updates up to `step` that have rows in both `losses` and `norms` [n]."""
    count = min(len(losses.sums), len(norms))
    sums, valid, parts = (tensor[-count:] if count else tensor[:0] for tensor in (losses.sums, losses.valid, losses.processes))
    means = (sums / torch.where(valid > 0, valid, torch.nan)).where((valid <= 0) | sums.isfinite(), torch.inf)
    return Updates(step - count + 1, means.tolist(), means.nanmean(1).tolist(), parts.tolist(), norms[-count:].tolist() if count else [])


def settled(t: Training, first_step: int, count: int) -> list[bool]:
    """Return for each of `count` updates, from `first_step` on, True if its data are comparable with those of the updates before it: at
    least half a global batch, and the mixture of sources of `WINDOW` updates before."""
    steps = np.arange(first_step - 1, first_step - 1 + count)
    whole = np.array([t.sampler.samples_in(step) >= t.sampler.global_batch_size / 2 for step in steps.tolist()], bool)
    if t.ops.resolved.phases is None or not t.workload.sources:
        return whole.tolist()
    then, now = (t.ops.get_mixture(at, t.workload.sources, t.workload.source_sizes) for at in (np.maximum(steps - WINDOW, 0), steps))
    return (whole & (np.abs(now - then).max(1, initial=0.0) < SAME_MIXTURE)).tolist()


def raise_alarms(t: Training, alarms: Sequence[Alarm]) -> None:
    """Log the alarms, with the samples to look at, and write them to alarms.jsonl, on rank 0."""
    if not t.context.is_master:
        return
    for alarm in alarms:
        located = with_samples(t, alarm)
        log.warning(located.describe())
        t.output.alarm(t.progress.global_step, located)


def with_samples(t: Training, alarm: Alarm) -> Alarm:
    """Return the alarm with the names of the samples that its update and its process used, as the dataset gives them."""
    indices = [index for index in t.sampler.indices_of(alarm.step - 1, alarm.process_rank) if index.real]
    try:
        samples = t.workload.train_set.__getitems__(indices[:LISTED])["sample"].tolist()
    except OSError:  # the file that training could read is gone
        samples = [index.sample for index in indices[:LISTED]]
    return dataclasses.replace(alarm, samples=tuple(t.workload.sample_names(samples)), sample_count=len(indices))
