"""Pass the numbers of a row of metrics to the health monitor. Write its alarms to the log and to alarms.jsonl."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from linnaeus.health import Alarm, RowNumbers, Updates, ValidationNumbers
from linnaeus.health.alarm import LISTED
from linnaeus.health.running_scale import WINDOW
from linnaeus.metrics.update_sums import UpdateLosses
from linnaeus.train.state import Training

log = logging.getLogger("linnaeus")

OF_ONE_UPDATE = ("loss_spike", "gradient_spike", "not_finite")  # alarms whose samples are named
SAME_MIXTURE = 0.02  # change of the share of a source within `WINDOW` updates below which losses remain comparable


def check_health(t: Training, row: Mapping[str, float]) -> dict[str, float]:
    """Log the alarms about the updates since the last row. Return further entries of `row`: `train/clip_rate` (fraction of clipped updates
    among those that were not skipped), `train/update_ratio/<group>` and `train/alarms` (number of alarms so far).

    `train/clip_rate` is left out without clipping or without such updates. `train/update_ratio/<group>` and `train/alarms` are left out if
    `logger.alarms` is off.

    Call this once per row, on all ranks. It waits for the device, and it clears the kept gradient norms of these updates."""
    norms = t.update.norms.read().tolist()
    t.update.norms.clear()
    limit = t.config.trainer.max_grad_norm or None
    applied_norms = [norm for norm in norms if math.isfinite(norm)]
    more = {} if limit is None or not applied_norms else {"train/clip_rate": sum(n > limit for n in applied_norms) / len(applied_norms)}
    if not t.config.logger.alarms or t.tracker.losses is None:
        return more
    found = updates(t.progress.global_step, t.tracker.losses, norms, t.workload.denominators)
    raise_alarms(t, t.health.observe(found._replace(settled=settled(t, found.first_step, len(found.norms)))))
    ratios = t.update_ratio.read()
    applied, sums = bool(norms) and math.isfinite(norms[-1]), t.tracker.losses.sums[-1:].sum(0)
    if t.ops.should_log_metrics(t.progress.global_step):  # not in rows added by an alarm: another alarm would be raised earlier
        raise_alarms(t, t.health.observe_row(row_numbers(t, row, ratios, applied, sums.tolist())))
    more |= {f"train/update_ratio/{group}": ratio for group, ratio in ratios.items()}
    return more | {"train/alarms": t.health.count}


def row_numbers(t: Training, row: Mapping[str, float], ratios: Mapping[str, float], applied: bool, sums: Sequence[float]) -> RowNumbers:
    """Return the input of `HealthMonitor.observe_row`: update ratios, head norms, and losses and weights of the tasks at this step.

    row: row of metrics. ratios: result of `UpdateRatio.read`. applied: False if the last update was skipped; the field `head_norms` of the
    result is then []. sums: sum of the losses of each task in the last update, [T]; the head norm of a task whose sum is 0 is NaN, because
    its output layer has no gradient in any run: it had no labels, or only labels that are certain, such as an only child in a tree.

    If the model names no output layers (one layer for all tasks), the head norm of each task is the gradient norm of the whole model."""
    tasks = t.workload.tasks
    losses = [row.get(f"train/{task}/loss", row["train/loss"]) for task in tasks]
    weights = [row[f"train/{task}/weight"] for task in tasks]
    heads = head_norms(t.model.head_parameters()) if applied else []
    if heads and t.shards.rows:
        heads = t.context.all_reduce(torch.tensor(heads), "max").tolist()
    if applied and not heads:
        heads = [row["train/grad_norm"]] * len(tasks)
    heads = [norm if loss else math.nan for norm, loss in zip(heads, sums)]
    moving = t.tracker.weights is not None
    return RowNumbers(t.progress.global_step, t.progress.get_progress_fraction(), ratios, heads, losses, weights, moving)


def head_norms(heads: Sequence[Sequence[torch.nn.Parameter]]) -> list[float]:
    """Return a list of T numbers: for each head, the largest of the gradient norms of its parameters. This waits for the device.

    heads: parameters of each of T heads. A head without a trained parameter has NaN. A trained parameter without a gradient has norm 0."""
    trained = [[parameter for parameter in head if parameter.requires_grad] for head in heads]
    grads = [parameter.grad for head in trained for parameter in head if parameter.grad is not None]
    values = iter(torch.stack(torch._foreach_norm(grads)).tolist() if grads else [])
    return [max((0.0 if p.grad is None else next(values) for p in head), default=math.nan) for head in trained]


def check_validation(t: Training, results: Mapping[str, float]) -> None:
    """Log the alarms about a validation. Call this on all ranks. results: metric key -> value, of all validation passes at this step.

    Do nothing if `logger.alarms` is off or `results` has neither `val/loss` nor `val_ema/loss`."""
    prefix = next((name for name in ("val", "val_ema") if f"{name}/loss" in results), None)
    if t.config.logger.alarms and prefix is not None:
        raise_alarms(t, t.health.observe_validation(validation_numbers(t, results, prefix)))


def validation_numbers(t: Training, results: Mapping[str, float], prefix: str) -> ValidationNumbers:
    """Return the input of `HealthMonitor.observe_validation`, read from `results` (metric key -> value).

    prefix: name of the pass without masks, `val` or `val_ema`. Task metrics are `<prefix>/<task>/loss` and `.../top1`; with a single
    task also `<prefix>/loss` and `<prefix>/top1`. The total loss is `val/loss`, None if only `val_ema` was measured."""

    def of_tasks(name: str) -> dict[str, float]:
        tasks = t.workload.tasks
        found = {
            task: results.get(f"{prefix}/{task}/{name}", results.get(f"{prefix}/{name}") if len(tasks) == 1 else None) for task in tasks
        }
        return {task: value for task, value in found.items() if value is not None}

    fraction = t.progress.get_progress_fraction()
    return ValidationNumbers(t.progress.global_step, fraction, results.get("val/loss"), of_tasks("loss"), of_tasks("top1"))


def updates(step: int, losses: UpdateLosses, norms: Sequence[float], denominators: Callable[[Tensor], Tensor]) -> Updates:
    """Return the input of `HealthMonitor.observe` for the newest updates. Update number `step` is the last of them.

    losses: sums of the losses, one row for each of the newest updates. norms: gradient norms of the newest updates. If one of the two has
    fewer updates, only that many are used. denominators: `Workload.denominators`. The field `settled` of the result keeps its default."""
    first = max(0, len(losses.sums) - len(norms))
    sums, valid = losses.sums[first:], losses.valid[first:]
    means = task_means(sums, valid).tolist()
    total = [row[0] if len(row) == 1 else _mean_of_present(row) for row in task_means(sums, denominators(valid)).tolist()]
    norms, parts, gradients = norms[len(norms) - len(means) :], losses.processes[first:].tolist(), losses.gradients[first:].tolist()
    return Updates(step - len(means) + 1, means, total, parts, norms, gradients=gradients)


def task_means(sums: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss of each of T tasks in each of n updates, [n, T]: NaN without labels, otherwise infinite if the loss is not
    finite.

    sums: sums of the losses, float64 [n, T]. labels: numbers of labels, float64 [n, T]."""
    means = sums / labels
    return means if means.isfinite().all() else means.where(sums.isfinite(), math.inf).masked_fill(labels == 0, math.nan)


def _mean_of_present(means: Sequence[float]) -> float:
    """Return the mean of the values that are not NaN; NaN if there is none."""
    present = [mean for mean in means if not math.isnan(mean)]
    return sum(present) / len(present) if present else math.nan


def settled(t: Training, first_step: int, count: int) -> list[bool]:
    """Return a bool for each of `count` updates from `first_step` on: True if the losses of the update are comparable with those of earlier
    updates. Return [] if all are.

    Losses are comparable if the batch has at least half of the global batch size, and if the share of each data source in the curriculum
    differs by less than `SAME_MIXTURE` from the share of this source `WINDOW` updates before."""
    half, mixed = t.sampler.global_batch_size / 2, t.ops.resolved.phases is not None and bool(t.workload.sources)
    if not mixed and t.sampler.samples_in(t.sampler.steps_per_epoch - 1) >= half:  # only the last batch of an epoch may be smaller
        return []
    steps = np.arange(first_step - 1, first_step - 1 + count)
    whole = [t.sampler.samples_in(step) >= half for step in steps.tolist()]
    if not mixed:
        return whole
    then, now = (t.ops.get_mixture(at, t.workload.sources, t.workload.source_sizes) for at in (np.maximum(steps - WINDOW, 0), steps))
    return (np.array(whole, bool) & (np.abs(now - then).max(1, initial=0.0) < SAME_MIXTURE)).tolist()


def raise_alarms(t: Training, alarms: Sequence[Alarm]) -> None:
    """Log the alarms as warnings and write them to alarms.jsonl. Do nothing on ranks other than 0.

    An alarm about one single update (its kind is in `OF_ONE_UPDATE`) also names the samples of that update."""
    if not t.context.is_master:
        return
    for alarm in alarms:
        located = with_samples(t, alarm) if alarm.kind in OF_ONE_UPDATE else alarm
        log.warning(located.describe())
        t.output.alarm(t.progress.global_step, located)


def with_samples(t: Training, alarm: Alarm) -> Alarm:
    """Return a copy of `alarm` with the number of samples in its update and the names of the first `LISTED` of these samples.

    Only samples of the process rank `alarm.process_rank` are counted; if it is None, samples of all processes. Names come from
    `Workload.sample_names`."""
    indices = [index for index in t.sampler.indices_of(alarm.step - 1, alarm.process_rank) if index.real]
    try:
        samples = t.workload.train_set.__getitems__(indices[:LISTED])["sample"].tolist()
    except OSError:  # the file has been removed since training read it
        samples = [index.sample for index in indices[:LISTED]]
    return dataclasses.replace(alarm, samples=tuple(t.workload.sample_names(samples)), sample_count=len(indices))
