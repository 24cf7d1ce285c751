"""`TrainingConsistencyChecker`: compare the updates that an epoch makes with the updates that the schedule plans.

The plan is exact, so a difference is an error of the loader. If a loader is 10 % short, every ramp, the learning rate and every `%`
come late relative to the data. The checker logs one warning with both numbers; `drift` is part of every row.
"""

from __future__ import annotations

import logging
from typing import Any

from linnaeus.durations import first_step_at
from linnaeus.schedule.length import TrainingLength, training_length

FRACTIONS = (0.25, 0.5, 0.75)
log = logging.getLogger("linnaeus")


class TrainingConsistencyChecker:
    """Compare the updates of epochs with the number that follows from the configuration and the size of the data."""

    def __init__(self, config: Any, world_size: int = 1, accumulation_steps: int = 1) -> None:
        self.config, self.world_size, self.accumulation_steps = config, world_size, accumulation_steps
        self.plan: TrainingLength | None = None
        self.actual_steps_per_epoch = 0
        self._warned = False

    def initialize_with_first_epoch(self, actual_steps: int, dataset_size: int) -> None:
        """Compute the plan and compare it with the loader. Raise `ConfigError` if the data do not suffice for one update.

        actual_steps: updates in an epoch of the loader. dataset_size: training samples over all processes."""
        self.plan = training_length(self.config, dataset_size)
        self.actual_steps_per_epoch = actual_steps
        self._warned = False
        self._compare(actual_steps, self._planned(0), "an epoch of the loader")

    def validate_epoch_steps(self, epoch: int, actual_steps: int) -> bool:
        """Return True if the finished `epoch` (0-based) made the planned updates, which are fewer in a last epoch that is cut short."""
        planned = self._planned(epoch)
        if planned == self._length().steps_per_epoch:
            self.actual_steps_per_epoch = actual_steps
        return self._compare(actual_steps, planned, f"epoch {epoch + 1}")

    def calculate_expected_fractions(self) -> dict[float, int]:
        """Return {fraction: the step at which it is done} for 25, 50 and 75 % of the run."""
        return {f: first_step_at(f * self._length().total_steps) for f in FRACTIONS}

    def drift(self, global_step: int, epochs_done: float | None = None) -> float:
        """Return progress through the data minus progress through the schedule, as a share of the run. It is 0 as planned and positive
        for a short loader.

        epochs_done: fractional passes over the data; by default computed from `global_step` and the length of the loader."""
        length = self._length()
        epochs = length.total_steps / length.steps_per_epoch
        if epochs_done is None:
            epochs_done = global_step / self.actual_steps_per_epoch if self.actual_steps_per_epoch else 0.0
            if self.actual_steps_per_epoch == self._planned(0):  # as planned, also in a run of less than one epoch
                return 0.0
        return epochs_done / epochs - global_step / length.total_steps

    def _length(self) -> TrainingLength:
        assert self.plan is not None, "call initialize_with_first_epoch first"
        return self.plan

    def _planned(self, epoch: int) -> int:
        length = self._length()
        return max(0, min(length.steps_per_epoch, length.total_steps - epoch * length.steps_per_epoch))

    def _compare(self, actual: int, planned: int, subject: str) -> bool:
        """Return True if the numbers are equal; log one warning per run if not."""
        if actual == planned:
            return True
        if not self._warned:
            self._warned = True
            log.warning(
                "%s has %d updates but %d were planned (%+.1f %%): training runs %s of the schedule, which has %d steps. "
                "Each update takes %d micro-batches on each of %d processes.",
                subject, actual, planned, 100 * (actual - planned) / max(1, planned), "ahead" if actual > planned else "behind",
                self._length().total_steps, self.accumulation_steps, self.world_size,
            )  # fmt: skip
        return False
