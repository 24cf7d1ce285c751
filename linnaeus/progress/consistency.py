"""`TrainingConsistencyChecker`: compare the number of updates that an epoch makes with the number that the schedule plans.

The planned number is exact, so a difference is an error of the loader. If a loader is 10 % short, every ramp, the learning rate and every
`%` duration come late relative to the data. The checker logs one warning with both numbers; every row of metrics contains `drift`."""

from __future__ import annotations

import logging
from typing import Any

from linnaeus.durations import first_step_at
from linnaeus.schedule.length import TrainingLength, training_length

FRACTIONS = (0.25, 0.5, 0.75)
log = logging.getLogger("linnaeus")


class TrainingConsistencyChecker:
    """Comparison of the updates that epochs make with the number that follows from the configuration and the size of the data."""

    def __init__(self, config: Any, world_size: int = 1, accumulation_steps: int = 1) -> None:
        self.config, self.world_size, self.accumulation_steps = config, world_size, accumulation_steps
        self.plan: TrainingLength | None = None
        self.actual_steps_per_epoch = 0
        self._warned = False

    def initialize_with_first_epoch(self, actual_steps: int, dataset_size: int) -> None:
        """Compute the planned number of updates per epoch, and compare it with `actual_steps`, the number of updates per epoch of the
        loader.

        `dataset_size`: number of training samples over all processes. Raise `ConfigError` if they do not suffice for one update."""
        self.plan = training_length(self.config, dataset_size)
        self.actual_steps_per_epoch = actual_steps
        self._warned = False
        self._compare(actual_steps, self._planned(0), "an epoch of the loader")

    def validate_epoch_steps(self, epoch: int, actual_steps: int) -> bool:
        """Return True if the finished `epoch` (0-based) made the planned number of updates. The last epoch of a run may have fewer planned
        updates.

        If the numbers differ, log a warning, once per run."""
        planned = self._planned(epoch)
        if planned == self._length().steps_per_epoch:
            self.actual_steps_per_epoch = actual_steps
        return self._compare(actual_steps, planned, f"epoch {epoch + 1}")

    def calculate_expected_fractions(self) -> dict[float, int]:
        """Return {fraction: step at which this fraction of the run is done} for the fractions 0.25, 0.5 and 0.75."""
        return {f: first_step_at(f * self._length().total_steps) for f in FRACTIONS}

    def drift(self, global_step: int) -> float:
        """Return the fraction of the run that is done by passes over the data, minus the fraction that is done by steps. It is 0 if the run
        is as planned, and positive if the loader yields fewer updates per epoch than planned."""
        if self.actual_steps_per_epoch == self._planned(0):  # as planned, also in a run of less than one epoch
            return 0.0
        length = self._length()
        epochs_done = global_step / self.actual_steps_per_epoch if self.actual_steps_per_epoch else 0.0
        return epochs_done / (length.total_steps / length.steps_per_epoch) - global_step / length.total_steps

    def _length(self) -> TrainingLength:
        assert self.plan is not None, "call initialize_with_first_epoch first"
        return self.plan

    def _planned(self, epoch: int) -> int:
        length = self._length()
        return max(0, min(length.steps_per_epoch, length.total_steps - epoch * length.steps_per_epoch))

    def _compare(self, actual: int, planned: int, subject: str) -> bool:
        """Return True if `actual` equals `planned`. Otherwise log a warning about `subject`, once per run, and return False."""
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
