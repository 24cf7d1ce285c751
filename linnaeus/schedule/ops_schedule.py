"""`OpsSchedule`: the events that are due at a step, and the probabilities and curriculum phases that apply at a step.

Every result is a function of the step and the resolved schedule, so all process ranks agree and a resume changes nothing. Only checkpoints
and progress reports may also be due by wall time. Two conventions for the step: `should_...` methods take `global_step` after an update
(from 1); `get_...` methods take `global_step` before the update that uses the value (from 0)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from linnaeus.schedule.early_stopping import StopConditions
from linnaeus.schedule.events import TimeTrigger
from linnaeus.schedule.resolved import ResolvedSchedule
from linnaeus.schedule.validation_passes import PARTIAL

if TYPE_CHECKING:
    import numpy as np


DENSER = 10  # rows and reports while something is wrong, for each report otherwise
RATIO_EVERY = 100  # updates between two measurements of the size of an update, at most; a measurement takes 0.1 ms


class Counter(Protocol):
    """An object with a `global_step`, such as `TrainingProgress`. The methods `should_validate...` accept such an object in place of an
    integer."""

    global_step: int


class OpsSchedule:
    """Events and probabilities of a run, for a given step. The methods read a `ResolvedSchedule`.

    The object can be pickled: loader workers receive a copy and read the probabilities from this copy."""

    def __init__(self, resolved: ResolvedSchedule, clock: Callable[[], float] = time.monotonic) -> None:
        self.resolved = resolved
        self.stop_conditions = StopConditions(resolved.early_stop, resolved.warmup_end)
        self._checkpoint_clocks = [TimeTrigger(s, clock) for s in resolved.checkpoint.seconds]
        self._report_clocks = [TimeTrigger(s, clock) for s in resolved.report.seconds]
        by_steps = resolved.report.periods or len(resolved.report.others) > 1  # otherwise at most the report at the end
        self._usual_gap = (resolved.report if by_steps else resolved.log).longest_gap
        self.ratio_every = max(1, min(RATIO_EVERY, self._usual_gap))

    # ---- events

    def next_event(self, current_step: int) -> int:
        """Return the first step after `current_step` at which a row of metrics, a report, a validation pass or a checkpoint is due, or the
        last step of the run."""
        r = self.resolved
        events = (r.log, r.report, r.validate, r.validate_mask_meta, r.validate_partial_mask_meta, r.checkpoint)
        return min(step for step in (r.last_step, *(event.next_after(current_step) for event in events)) if step is not None)

    def report_due_by_clock(self) -> bool:
        """Return True if an interval of `schedule.report` in wall time has passed. This does not begin a new interval; `should_report`
        does."""
        return any(trigger.passed for trigger in self._report_clocks)

    def should_log_metrics(self, current_step: int) -> bool:
        return self.resolved.log.due(current_step)

    def should_measure_update_ratio(self, current_step: int) -> bool:
        """Return True if the first row of metrics in a block of steps is logged at `current_step`.

        Each block has as many steps as there are between two reports, at most `RATIO_EVERY`; the first block begins at step 1."""
        log, before = self.resolved.log, (current_step - 1) // self.ratio_every * self.ratio_every
        return log.due(current_step) and log.next_after(before) == current_step

    def should_report(self, current_step: int) -> bool:
        """Return True if a progress report is due, by steps or by the wall clock of this process.

        The clocks of process ranks differ, so a report may be due on some ranks only. Do not call a collective in a report."""
        by_clock = [trigger.due() for trigger in self._report_clocks]
        return self.resolved.report.due(current_step) or True in by_clock

    def dense_due(self, current_step: int, newest_trouble: int | None) -> bool:
        """Return True if a row of metrics and a report are due at `current_step` because something is wrong.

        This is so at every tenth (`DENSER`) of the interval between reports, for one interval after the step `newest_trouble`; never if
        `newest_trouble` is None. Without reports by steps, the interval is that between rows of metrics."""
        return newest_trouble is not None and self.next_dense(current_step - 1, newest_trouble) == current_step

    def next_dense(self, current_step: int, newest_trouble: int | None) -> int | None:
        """Return the first step after `current_step` for which `dense_due` is True; None if there is none."""
        period = max(1, self._usual_gap // DENSER)
        step = (current_step // period + 1) * period
        found = newest_trouble is not None and step <= min(newest_trouble + self._usual_gap, self.resolved.last_step)
        return step if found else None

    def should_validate(self, current_step: int | Counter) -> bool:
        return self.resolved.validate.due(_step(current_step))

    def should_validate_mask_meta(self, current_step: int | Counter) -> bool:
        return self.resolved.validate_mask_meta.due(_step(current_step))

    def should_validate_partial_mask_meta(self, current_step: int | Counter) -> bool:
        return self.resolved.validate_partial_mask_meta.due(_step(current_step))

    def partial_validations_due(self, current_step: int) -> range:
        """Return the indices into `resolved.combinations` of the partial validation passes that are due at this step.

        These are the combinations listed in the configuration; at the last step all combinations, if `schedule.all_combinations_at_end` is
        set."""
        r = self.resolved
        if not self.should_validate_partial_mask_meta(current_step):
            return range(0)
        return range(len(r.combinations) if r.all_combinations_at_end and current_step == r.last_step else r.num_listed)

    def passes_at_end(self) -> list[tuple[str, int | None]]:
        """Return (event name, index into `resolved.combinations`) of each validation pass that is configured for the last step. The index
        is None for a pass that is not partial.

        A run that stops early makes these passes too."""
        r = self.resolved
        passes: list[tuple[str, int | None]] = [(name, None) for name in r.at_end if name != PARTIAL]
        return passes + [(PARTIAL, i) for i in self.partial_validations_due(r.last_step) if PARTIAL in r.at_end]

    def checkpoint_due_by_clock(self) -> bool:
        """Return True if an interval of `schedule.checkpoint` in wall time has passed; then begin a new interval.

        Call this on rank 0 only; the caller broadcasts the result."""
        return True in [trigger.due() for trigger in self._checkpoint_clocks]

    def should_save_checkpoint(self, current_step: int, by_clock: bool = False) -> bool:
        """Return True if a checkpoint is due by steps, or if `by_clock` is True. If the result is True, restart the intervals in wall time.

        `by_clock`: result of `checkpoint_due_by_clock` on rank 0, broadcast to all ranks so that it is equal on them."""
        due = by_clock or self.resolved.checkpoint.due(current_step)
        if due:
            for trigger in self._checkpoint_clocks:
                trigger.restart()
        return due

    def should_update_gradnorm(self, current_step: int) -> bool:
        """Return True if the task weights are updated at update `current_step`.

        In spite of its name, this applies to every task weighting, not only to GradNorm."""
        return self.resolved.weighting.due(current_step)

    def should_grow(self, current_step: int) -> bool:
        """Return True if update `current_step` connects further weights (`growth`)."""
        return self.resolved.growth.due(current_step)

    def should_stop_early(
        self,
        current_step: int,
        *,
        learning_rate: float | None = None,
        grad_norm: float | None = None,
        results: Mapping[str, float] | None = None,
    ) -> str | None:
        """Return the reason to stop, as one line, if a limit of `schedule.early_stop` is reached; otherwise None.

        Pass `learning_rate` and `grad_norm` when a row of metrics is logged, and `results` after the validation passes of a step. A limit
        on a value that is not passed is not checked. Patience is not checked here: it has a state, in `EarlyStopping`."""
        reason = self.stop_conditions.at_step(current_step)
        if reason is None and learning_rate is not None:
            reason = self.stop_conditions.after_log(current_step, learning_rate, 0.0 if grad_norm is None else grad_norm)
        if reason is None and results is not None:
            reason = self.stop_conditions.after_validation(results)
        return reason

    # ---- probabilities and shares

    def get_meta_mask_prob(self, current_step: int) -> float:
        """Return the probability that all metadata of a training sample are masked."""
        return self.resolved.meta_mask_prob.at(current_step)

    def get_partial_meta_mask_prob(self, current_step: int) -> float:
        """Return the probability that some of the metadata components of a training sample are masked, given that not all of them are
        masked."""
        return self.resolved.partial_meta_mask_prob.at(current_step)

    def get_null_mask_prob(self, current_step: int) -> float:
        """Return the probability that a missing label of a sample is left out of the loss. Otherwise the label becomes a null label, a
        class of its own that the model learns to predict."""
        return self.resolved.null_mask_prob.at(current_step)

    def get_mixup_prob(self, current_step: int) -> float:
        """Return the probability that a pair of samples is mixed."""
        return self.resolved.mixup_prob.at(current_step)

    def get_augmentation(self, current_step: int) -> bool:
        """Return True if the training samples of the update are augmented.

        This is False in the last part of the run (`augment.off_last`)."""
        end = self.resolved.augmentation_end
        return end is None or current_step < end

    def get_image_size(self, current_step: int) -> int | None:
        """Return the side length in pixels of the training images of the update; None if it is constant in the run."""
        return None if self.resolved.image_sizes is None else self.resolved.image_sizes.at(current_step)

    def get_connection_density(self, current_step: int) -> float:
        """Return the fraction of the maskable weights, 0 to 1, that should be connected after update `current_step`. `current_step` 0 means
        the start of the run."""
        return 1.0 if self.resolved.density is None else self.resolved.density.at(current_step)

    def get_mixup_group_level(self, epoch: int) -> str | None:
        """Return the taxonomic rank for mixing samples in `epoch` (0-based): two samples are paired only if they have the same taxon at
        this rank.

        Return None if no entry of `schedule.mixup_group_level` is in effect yet; then no samples are paired."""
        level = None
        for first_epoch, name in self.resolved.mixup_group_levels:
            if first_epoch <= epoch:
                level = name
        return level

    # ---- phases of the curriculum

    def get_mixture(self, steps: np.ndarray, sources: Sequence[str], sizes: Sequence[int]) -> np.ndarray:
        """Return the probability that a sample comes from each of S = len(`sources`) sources, float64 [n, S], for the updates at `steps`
        (int [n]).

        Without curriculum phases the probability is proportional to `sizes`, the numbers of samples of the sources."""
        phases = self.resolved.phases
        if phases is None:
            import numpy as np

            from linnaeus.schedule.phases import shares_of_sizes

            return np.tile(shares_of_sizes(sizes), (len(steps), 1))
        return phases.mixture(steps, sources, sizes)

    def get_dimension_weights(self, steps: np.ndarray, dimensions: Sequence[str]) -> np.ndarray:
        """Return the weight of each of the D = len(`dimensions`) named parts of the model, float64 [n, D], in the updates at `steps` (int
        [n]).

        Each row sums to 1; without curriculum phases all weights are equal. A model is validated with the weights of the last update, at
        step `resolved.last_step` - 1."""
        phases = self.resolved.phases
        if phases is None:
            import numpy as np

            return np.full((len(steps), len(dimensions)), 1.0 / max(1, len(dimensions)))
        return phases.dimension_weights(steps, dimensions)


def _step(current: int | Counter) -> int:
    return current if isinstance(current, int) else current.global_step
