"""`TrainingConsistencyChecker`: does training go as planned? The plan is exact, so any difference is a loader that lies.

A loader short by 10 % would train fewer steps per epoch than the schedule counts on: every ramp, the learning rate and every
`%` would come late against the data. One warning says so with both numbers, and `drift` is logged.
"""

from __future__ import annotations

import logging
from typing import Any

from linnaeus.durations import first_step_at
from linnaeus.schedule.length import TrainingLength, training_length

FRACTIONS = (0.25, 0.5, 0.75)
log = logging.getLogger("linnaeus")


class TrainingConsistencyChecker:
    """Compares the updates that epochs have with the updates the config and the size of the data ask for."""

    def __init__(self, config: Any, world_size: int = 1, accumulation_steps: int = 1) -> None:
        self.config, self.world_size, self.accumulation_steps = config, world_size, accumulation_steps
        self.plan: TrainingLength | None = None
        self.actual_steps_per_epoch = 0
        self._warned = False

    def initialize_with_first_epoch(self, actual_steps: int, dataset_size: int) -> None:
        """`actual_steps`: the updates an epoch of the loader makes; `dataset_size`: training samples over all processes.
        Raises `ConfigError` where no training is possible at all."""
        self.plan = training_length(self.config, dataset_size)
        self.actual_steps_per_epoch = actual_steps
        self._warned = False
        self._compare(actual_steps, self._planned(0), "an epoch of the loader")

    def validate_epoch_steps(self, epoch: int, actual_steps: int) -> bool:
        """Whether a (0-based) epoch that has ended made the updates planned for it; the last one may be cut short."""
        planned = self._planned(epoch)
        if planned == self._length().steps_per_epoch:
            self.actual_steps_per_epoch = actual_steps
        return self._compare(actual_steps, planned, f"epoch {epoch + 1}")

    def calculate_expected_fractions(self) -> dict[float, int]:
        """The steps at which 25, 50 and 75 % of the run are done."""
        return {f: first_step_at(f * self._length().total_steps) for f in FRACTIONS}

    def drift(self, global_step: int, epochs_done: float | None = None) -> float:
        """Progress through the data minus progress through the schedule, as a share of the run: 0 as planned, above 0 where
        the data run ahead (a short loader). Without `epochs_done` (of passes over the data, fractional) it is what the length
        of the loader implies, a function of `global_step`."""
        length = self._length()
        epochs = length.total_steps / length.steps_per_epoch
        if epochs_done is None:
            epochs_done = global_step / self.actual_steps_per_epoch if self.actual_steps_per_epoch else 0.0
            if self.actual_steps_per_epoch == self._planned(0):  # a run of less than one epoch, or as planned
                return 0.0
        return epochs_done / epochs - global_step / length.total_steps

    def _length(self) -> TrainingLength:
        assert self.plan is not None, "call initialize_with_first_epoch first"
        return self.plan

    def _planned(self, epoch: int) -> int:
        length = self._length()
        return max(0, min(length.steps_per_epoch, length.total_steps - epoch * length.steps_per_epoch))

    def _compare(self, actual: int, planned: int, what: str) -> bool:
        if actual == planned:
            return True
        if not self._warned:
            self._warned = True
            log.warning(
                "%s has %d updates but %d were planned (%+.1f %%): training runs %s; schedules count on %d steps in all. "
                "Each update takes %d micro-batches on each of %d processes.",
                what, actual, planned, 100 * (actual - planned) / max(1, planned), "ahead" if actual > planned else "behind",
                self._length().total_steps, self.accumulation_steps, self.world_size,
            )  # fmt: skip
        return False
