"""`OpsSchedule`: the one object that answers whether something is due now and how likely something is now.

Every answer is a function of the step and the resolved schedule, so all processes agree and a resume changes nothing; only
checkpoints and reports may also go by the clock. Two conventions: `should_...` take the number of an update (`global_step` once
it is done, from 1); `get_...` take `global_step` before the update that uses the value (from 0).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from linnaeus.schedule.early_stopping import StopConditions
from linnaeus.schedule.events import TimeTrigger
from linnaeus.schedule.resolved import PARTIAL, ResolvedSchedule

if TYPE_CHECKING:
    import numpy as np


class OpsSchedule:
    """Picklable: loader workers carry it for the probabilities."""

    def __init__(self, resolved: ResolvedSchedule, clock: Callable[[], float] = time.monotonic) -> None:
        self.resolved = resolved
        self.stop_conditions = StopConditions(resolved.early_stop, resolved.warmup_end)
        self._checkpoint_clocks = [TimeTrigger(s, clock) for s in resolved.checkpoint.seconds]
        self._report_clocks = [TimeTrigger(s, clock) for s in resolved.report.seconds]

    # ---- what is due at a step

    def should_log_metrics(self, current_step: int) -> bool:
        return self.resolved.log.due(current_step)

    def should_report(self, current_step: int) -> bool:
        """By the clock the answer is this process's own: print what it has, reduce nothing over the processes."""
        clock = [trigger.due() for trigger in self._report_clocks]
        return self.resolved.report.due(current_step) or True in clock

    def should_validate(self, current_step: int) -> bool:
        return self.resolved.validate.due(current_step)

    def should_validate_mask_meta(self, current_step: int) -> bool:
        return self.resolved.validate_mask_meta.due(current_step)

    def should_validate_partial_mask_meta(self, current_step: int) -> bool:
        return self.resolved.validate_partial_mask_meta.due(current_step)

    def partial_validations_due(self, current_step: int) -> range:
        """Indices into `resolved.combinations` of the partial passes due: the listed ones, or at the end all where asked for."""
        r = self.resolved
        if not self.should_validate_partial_mask_meta(current_step):
            return range(0)
        return range(len(r.combinations) if r.all_combinations_at_end and current_step == r.last_step else r.listed)

    def passes_at_end(self) -> list[tuple[str, int | None]]:
        """Return (event name, partial index) of the validation passes of the last step, for a run that stops before it."""
        r = self.resolved
        passes: list[tuple[str, int | None]] = [(name, None) for name in r.at_end if name != PARTIAL]
        return passes + [(PARTIAL, i) for i in self.partial_validations_due(r.last_step) if PARTIAL in r.at_end]

    def checkpoint_due_by_clock(self) -> bool:
        """Whether an interval of `schedule.checkpoint` by the clock has passed. Only rank 0 may ask, and tells the others."""
        return True in [trigger.due() for trigger in self._checkpoint_clocks]

    def should_save_checkpoint(self, current_step: int, by_clock: bool = False) -> bool:
        """By steps, or because rank 0's clock says so (`by_clock`, which all processes must have agreed on)."""
        due = by_clock or self.resolved.checkpoint.due(current_step)
        if due:
            for trigger in self._checkpoint_clocks:
                trigger.restart()
        return due

    def should_update_gradnorm(self, current_step: int) -> bool:
        """Whether the update number `current_step` also updates the task weights, by GradNorm or whatever weighting there is."""
        return self.resolved.weighting.due(current_step)

    def should_measure_conflict(self, current_step: int) -> bool:
        """Whether the conflict between the tasks is measured in the update number `current_step`."""
        return self.resolved.conflict.due(current_step)

    def should_grow(self, current_step: int) -> bool:
        """Whether weights are connected in the update number `current_step`."""
        return self.resolved.growth.due(current_step)

    def should_stop_early(
        self,
        current_step: int,
        *,
        learning_rate: float | None = None,
        grad_norm: float | None = None,
        results: Mapping[str, float] | None = None,
    ) -> str | None:
        """The reason to stop by a stated limit, or None. Give what is known now: the rate and the gradient norm at a log
        boundary, `results` after the passes of a step. Patience has a state and is `EarlyStopping`'s."""
        reason = self.stop_conditions.at_step(current_step)
        if reason is None and learning_rate is not None:
            reason = self.stop_conditions.after_log(current_step, learning_rate, 0.0 if grad_norm is None else grad_norm)
        if reason is None and results is not None:
            reason = self.stop_conditions.after_validation(results)
        return reason

    # ---- how likely something is

    def get_meta_mask_prob(self, current_step: int) -> float:
        """Probability that all metadata of a training sample are masked."""
        return self.resolved.meta_mask_prob.at(current_step)

    def get_partial_meta_mask_prob(self, current_step: int) -> float:
        """Probability that a combination of a sample's metadata is masked, of the samples not fully masked."""
        return self.resolved.partial_meta_mask_prob.at(current_step)

    def get_null_mask_prob(self, current_step: int) -> float:
        """Probability that a null label is left out of the loss."""
        return self.resolved.null_mask_prob.at(current_step)

    def get_mixup_prob(self, current_step: int) -> float:
        """Probability that a pair of samples is mixed."""
        return self.resolved.mixup_prob.at(current_step)

    def get_connection_density(self, current_step: int) -> float:
        """Share of the maskable weights that are connected in the state at `current_step`, if weights are connected in the update
        that leads there or it is 0."""
        return 1.0 if self.resolved.density is None else self.resolved.density.at(current_step)

    def get_mixup_group_level(self, epoch: int) -> str | None:
        """The taxonomic rank whose members are paired in a (0-based) epoch; None before the first entry: no pairs."""
        level = None
        for begins, name in self.resolved.mixup_group_levels:
            if begins <= epoch:
                level = name
        return level

    # ---- where the curriculum stands; without phases every answer is the plain one

    def get_phase(self, current_step: int) -> tuple[str, str] | None:
        """(name, description) of the phase with the largest share in the update at `current_step`; None without phases."""
        phases = self.resolved.phases
        return None if phases is None else phases.at(current_step)

    def get_lr_multiplier(self, current_step: int) -> float:
        """What phases multiply the learning rate by, which the learning-rate schedule does itself."""
        phases = self.resolved.phases
        return 1.0 if phases is None else phases.lr_multiplier(current_step)

    def get_mixture(self, steps: np.ndarray, sources: Sequence[str], sizes: Sequence[int]) -> np.ndarray:
        """float64 [n, S]: the probability that a sample of the update at each of `steps` (int [n]) comes from each of `sources`; without
        phases in proportion to their `sizes`."""
        phases = self.resolved.phases
        if phases is None:
            import numpy as np

            from linnaeus.schedule.phases import shares_of_sizes

            return np.tile(shares_of_sizes(sizes), (len(steps), 1))
        return phases.mixture(steps, sources, sizes)

    def get_dimension_weights(self, steps: np.ndarray, dimensions: Sequence[str]) -> np.ndarray:
        """float64 [n, D]: the weight of each of `dimensions` in the update at each of `steps` (int [n]); rows sum to 1, and without
        phases all weights are equal. The weights of the last update, by which a model is validated, are those at
        `resolved.last_step` - 1."""
        phases = self.resolved.phases
        if phases is None:
            import numpy as np

            return np.full((len(steps), len(dimensions)), 1.0 / max(1, len(dimensions)))
        return phases.dimension_weights(steps, dimensions)
