"""Accumulate the metrics of a run. `MetricsTracker` sums training metrics between two log rows and stores the best and last validation
results; `StepMetricsLogger` makes the log row of a step.

The sums are on the device and are read once per row. Loss sums are float64 and are divided by the numbers of valid labels of the same
updates, so a constant loss of 2 is reported as 2 for any number of accumulation steps and any log interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from linnaeus.distributed.summation_tree import PairwiseSum, SumOrder
from linnaeus.metrics.streaming import TrainingMetrics
from linnaeus.metrics.update_sums import MOST_ROWS, UpdateLosses, UpdateSums

SMOOTHING = 0.98  # decay of the smoothed loss per update


class MetricsTracker:
    """Sums of training metrics since the last log row, and the best and last validation results."""

    def __init__(
        self,
        tasks: tuple[str, ...],
        training_metrics: TrainingMetrics,
        device: torch.device,
        weights: Tensor | None = None,
        rows: int = MOST_ROWS,
        order: SumOrder | None = None,
    ) -> None:
        """weights: initial task weights, [T], if they change during the run; None if they are constant. With changing weights, second sums
        are kept, in which each loss sum is multiplied by the task weights of its backward pass. rows: largest number of updates between two
        log rows. order: order of the sums over micro-batches and processes; None: any."""
        self.tasks, self.training = tasks, training_metrics
        self.weights = None if weights is None else weights.clone()  # those of the last backward
        self.sums = UpdateSums(len(tasks), rows, device, weights is not None, order)
        self.losses: UpdateLosses | None = None  # of the updates of the last row
        self.updates = 0
        self.smoothed = self.smoothed_weight = 0.0
        self.last: dict[str, float] = {}  # results of the last validated step
        self.last_step = -1
        self.final: dict[str, float] = {}  # the last result of every metric
        self.best: dict[str, dict[str, float]] = {}

    def add_micro_batch(self, loss_sums: Tensor, outputs: Any, batch: dict[str, Tensor], weights: Tensor) -> None:
        """Add the losses and counts of one micro-batch. This does not wait for the device.

        loss_sums: result of the workload's `loss_sums`, [T]. weights: task weights used in the backward of the micro-batch, [T]."""
        if self.weights is None:
            self.sums.add(loss_sums.detach())
        else:
            self.weights.copy_(weights)
            self.sums.add(loss_sums.detach(), weights)
        self.training.count(outputs, batch)

    def add_update(self, valid: Sequence[float]) -> None:
        """Count one optimizer update. valid: number (or total weight) of the valid labels of each task in the whole global batch, T
        numbers."""
        self.sums.end_update(valid)
        self.updates += 1

    def training_row(
        self,
        all_reduce: Callable[[Tensor], Tensor],
        total_loss: Callable[[Tensor, Tensor, Tensor], Tensor],
        denominators: Callable[[Tensor], Tensor],
        weights: Tensor,
        peek: bool,
        rank: int,
        world_size: int,
    ) -> dict[str, float]:
        """Return a row of training metrics: means over all processes since the last row, weighted and smoothed losses, and the task weights
        of the last update. Then set the sums to 0, unless `peek` is True. This waits for the device, so call it for log rows only.
        Call it on all ranks.

        all_reduce: function that returns the sum of a tensor over all processes. total_loss: function `total_loss(sums, weights,
        denominators)`, all [T], that returns the weighted loss, a scalar tensor. denominators: function that returns the denominators of
        the losses from the label counts, [T]. weights: the task weights if they are constant, [T]; otherwise ignored. rank, world_size: of
        this process."""
        self.losses = self.sums.read(all_reduce, rank, world_size)
        totals, valid = self.losses.total_sums, self.losses.total_valid
        last = (weights if self.weights is None else self.weights).to("cpu", torch.float64)
        weighted = self.losses.total_weighted
        sums, factors = (totals, last) if weighted is None else (weighted, torch.ones_like(last))
        objective = total_loss(sums, factors, denominators(valid))
        counts = {name: all_reduce(count.clone()) for name, count in self.training.counts.items()}
        results = self.training.compute(totals, valid, {k: v.cpu() for k, v in counts.items()})
        row = {f"train/{name}": value for name, value in results.items()}
        row["train/weighted_loss"] = objective.item()
        smoothed, weight = self._smooth(row["train/loss"])
        row["train/smoothed_loss"] = smoothed / weight if weight else math.nan
        if not peek:
            self.smoothed, self.smoothed_weight = smoothed, weight
            self._clear()
        return row | {f"train/{task}/weight": weight for task, weight in zip(self.tasks, last.tolist(), strict=True)}

    def _smooth(self, loss: float) -> tuple[float, float]:
        """Return (moving average including `loss`, sum of the weights of the average). The state is not changed.

        The exponential moving average starts at 0. The caller divides the average by the sum of the weights to remove the bias towards 0,
        as in Adam. If `loss` is not finite, return the current average and sum."""
        if not math.isfinite(loss):
            return self.smoothed, self.smoothed_weight
        keep = SMOOTHING**self.updates
        return keep * self.smoothed + (1 - keep) * loss, keep * self.smoothed_weight + (1 - keep)

    def _clear(self) -> None:
        self.sums.clear()
        for count in self.training.counts.values():
            count.zero_()
        self.updates = 0

    def update_validation(self, step: int, results: Mapping[str, float], monitor: str, mode: str) -> bool:
        """Record `results` of `step`, in addition to earlier results of the same step. mode: "min" or "max".

        Return True if `results[monitor]` is better than all earlier values or equal to the best one; False if it is worse, NaN or missing.
        Equality gives True because, of checkpoints with equal scores, retention keeps the newest."""
        self.last = {**self.last, **results} if step == self.last_step else dict(results)
        self.last_step = step
        self.final |= results
        value = results.get(monitor, math.nan)
        best = self.best.get(monitor, {}).get("value", math.inf if mode == "min" else -math.inf)
        if math.isnan(value) or not (value <= best if mode == "min" else value >= best):
            return False
        self.best[monitor] = {"value": value, "global_step": step}
        return True

    def forget_validations(self) -> None:
        """Delete all validation results."""
        self.last, self.last_step, self.final, self.best = {}, -1, {}, {}

    def state_dict(self) -> dict[str, Any]:
        """Return the part of the state that is equal on all processes."""
        return {
            "sums": self.sums.state_dict(),
            "updates": self.updates,
            "smoothed": self.smoothed,
            "smoothed_weight": self.smoothed_weight,
            "last": dict(self.last),
            "last_step": self.last_step,
            "final": dict(self.final),
            "best": {k: dict(v) for k, v in self.best.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sums.load_state_dict(state["sums"])
        self.updates = state["updates"]
        self.smoothed, self.smoothed_weight = state["smoothed"], state["smoothed_weight"]
        self.last_step = state["last_step"]
        self.last, self.final = dict(state["last"]), dict(state["final"])
        self.best = {k: dict(v) for k, v in state["best"].items()}

    def rank_state_dict(self) -> dict[str, Tensor]:
        """Return copies on the host of the sums of this process since the last log row."""
        own = {"losses": self.sums.losses, "earlier_losses": self.sums.earlier_losses} | self._counts()
        own |= {} if self.sums.gradient_norms is None else {"gradient_norms": self.sums.gradient_norms}
        return {name: total.detach().cpu().clone() for name, total in own.items()}

    def merged_rank_states(self, states: Sequence[dict[str, Tensor]]) -> list[dict[str, Tensor]]:
        """Return one state with the sums over `states`, the results of `rank_state_dict` of all processes, added pairwise in the order of
        their ranks. So a checkpoint has the same bytes for any number of processes. The number of processes must be a power of two."""
        merged = PairwiseSum()
        for state in states:
            merged.push([value.clone() for value in state.values()])
        return [dict(zip(states[0], merged.total(), strict=True))]

    def load_rank_state_dict(self, states: list[dict[str, Tensor]], rank: int, world_size: int) -> None:
        """Load the sums of this process. Call this after `load_state_dict`.

        states: results of `rank_state_dict` of all processes of the saved run, in the order of their ranks. If the saved run had another
        number of processes than `world_size`, rank 0 loads the totals over `states`, and all other ranks load 0."""
        if len(states) == world_size:
            own = [states[rank]]
        else:
            own = states if rank == 0 else []
        self.sums.load_losses(own)
        for name, target in self._counts().items():
            target.zero_()
            for state in own:
                target += state[name].to(target.device)

    def _counts(self) -> dict[str, Tensor]:
        """Return the integer counts of this process: name in a checkpoint -> tensor. The tensors are not copied."""
        return {f"count/{name}": count for name, count in self.training.counts.items()}

    def dump_metrics_state(self) -> dict[str, Any]:
        """Return the whole state as plain numbers and lists, for `debug.dump_metrics=true`."""
        totals = (self.sums.losses.sum(0) + self.sums.earlier_losses).tolist()
        return {
            "tasks": list(self.tasks),
            "since_last_row": {
                "updates": self.updates,
                "loss_sums": totals[: len(self.tasks)],
                "weighted_sums": totals[len(self.tasks) :] or None,
                "valid": (self.sums.valid_rows().sum(0) + self.sums.earlier_valid).tolist(),
                "counts": {k: v.tolist() for k, v in self.training.counts.items()},
            },
            "smoothed_loss": self.smoothed / self.smoothed_weight if self.smoothed_weight else None,
            "smoothed": {"sum": self.smoothed, "weight": self.smoothed_weight, "keep": SMOOTHING},
            "last_validation": {"global_step": self.last_step, "results": self.last},
            "final": self.final,
            "best": self.best,
        }


class StepMetricsLogger:
    """Builder of log rows: the means of a `MetricsTracker`, the learning rate, the gradient norm and the number of skipped updates."""

    def __init__(
        self,
        tracker: MetricsTracker,
        all_reduce: Callable[[Tensor], Tensor],
        total_loss: Callable[[Tensor, Tensor, Tensor], Tensor],
        denominators: Callable[[Tensor], Tensor],
        rank: int,
        world_size: int,
    ) -> None:
        """all_reduce: function that returns the sum of a tensor over all processes. total_loss, denominators: methods of the workload.
        rank, world_size: of this process."""
        self.tracker, self.all_reduce, self.total_loss, self.denominators = tracker, all_reduce, total_loss, denominators
        self.rank, self.world_size = rank, world_size

    def row(self, lr: float, grad_norm: Tensor, task_weights: Tensor, skipped_updates: int, peek: bool = False) -> dict[str, float]:
        """Return the log row of the current step. Call this on all ranks.

        task_weights: the task weights if they are constant, [T]; otherwise ignored. peek: True to keep the sums, which are otherwise set to
        0."""
        functions = self.all_reduce, self.total_loss, self.denominators
        row = self.tracker.training_row(*functions, task_weights, peek, self.rank, self.world_size)
        return row | {"train/lr": lr, "train/grad_norm": float(grad_norm), "train/skipped_updates": skipped_updates}
