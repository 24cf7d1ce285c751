"""`TrainingProgress`: the only counter of a run, and the validation passes that are pending at its current step.

`global_step` counts optimizer updates and increases at the update. Data position, schedules, logs and checkpoints are functions of
`global_step`. Counting an update costs about 0.1 us."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from linnaeus.durations import first_step_at
from linnaeus.progress.stages import TrainingStage

PassKey = tuple[TrainingStage, int | None]  # a validation pass: its stage and, for a partial one, its index


class TrainingProgress:
    """Counters of a run, and the validation passes of its current step.

    current_stage: training, or the validation pass that is running.
    current_epoch: 0-based.
    step: micro-batches of this process.
    global_step: optimizer updates.
    samples_seen: training samples over all processes, without the placeholders of empty micro-batches.
    units_seen: units (tokens) in these samples; 0 if the workload does not define units.
    expected_total_steps: updates of the whole run, set before the first batch; 0 while unknown.
    steps_per_epoch: updates of an epoch; 0 while unknown.
    pending_validations, completed_validations: (stage, partial index) of validation passes at step `validation_step`, the current step."""

    __slots__ = (
        "_epochs",
        "accumulation_steps",
        "completed_validations",
        "current_epoch",
        "current_stage",
        "expected_total_steps",
        "global_step",
        "pending_validations",
        "samples_seen",
        "step",
        "steps_per_epoch",
        "units_seen",
        "validation_step",
        "world_size",
    )

    def __init__(self, config: Any = None, world_size: int = 1, accumulation_steps: int = 1) -> None:
        """Set all counters to 0. `config`: if given, the length of the run is read from `config.trainer.length`, until `set_length` is
        called."""
        assert world_size >= 1 and accumulation_steps >= 1
        self.world_size, self.accumulation_steps = world_size, accumulation_steps
        self.current_stage = TrainingStage.TRAINING
        self.current_epoch = self.step = self.global_step = self.samples_seen = self.units_seen = 0
        self.steps_per_epoch = 0
        self.pending_validations: list[PassKey] = []
        self.completed_validations: list[PassKey] = []
        self.validation_step = 0  # the step of the passes in the two lists
        length = re.fullmatch(r"(\d+)(steps?|epochs?)", str(getattr(getattr(config, "trainer", None), "length", "")))
        self.expected_total_steps = int(length[1]) if length and length[2].startswith("step") else 0
        self._epochs = int(length[1]) if length and length[2].startswith("epoch") else 0

    def set_length(self, total_steps: int, steps_per_epoch: int) -> None:
        """Set the number of updates of the run and of an epoch. Call this before the first batch."""
        self.expected_total_steps, self.steps_per_epoch = total_steps, steps_per_epoch

    # ---- counting

    def start_training_epoch(self, epoch: int | None = None) -> None:
        """Set the current epoch to `epoch` (0-based; None: the epoch of the next update) and the stage to training.

        After a resume `global_step` may be in the middle of the epoch."""
        epoch = self.next_epoch if epoch is None else epoch
        assert not self.pending_validations, f"step {self.validation_step} has pending validations: {self.pending_validations}"
        assert not self.steps_per_epoch or self.global_step <= (epoch + 1) * self.steps_per_epoch, (
            f"epoch {epoch} is over at step {self.global_step} with {self.steps_per_epoch} steps per epoch"
        )
        self.current_epoch, self.current_stage = epoch, TrainingStage.TRAINING

    start_epoch = start_training_epoch

    def update_step(self, batch_size: int, is_accumulation_step: bool) -> bool:
        """Count a micro-batch of `batch_size` samples on each process. Return True if the micro-batch completed an optimizer update.

        `is_accumulation_step`: True if the gradient was only accumulated; then `global_step` does not change."""
        self.step += 1
        self.samples_seen += batch_size * self.world_size
        if is_accumulation_step:
            return False
        self.global_step += 1
        return True

    def update_window(self, samples: int, micro_batches: int, units: int = 0) -> None:
        """Count one optimizer update: `micro_batches` on this process, `samples` and `units` (tokens) over all processes.

        Unlike `update_step` this counts exactly if the processes have unequal shares of the last batch of an epoch."""
        samples_seen = self.samples_seen + samples
        self.step += micro_batches - 1
        self.update_step(0, False)
        self.samples_seen = samples_seen
        self.units_seen += units

    def end_epoch(self) -> None:
        """Check, by an assertion, that `global_step` is not beyond the end of the current epoch. Call this after the last update of an
        epoch.

        Validation passes may still be pending."""
        assert not self.steps_per_epoch or self.global_step <= (self.current_epoch + 1) * self.steps_per_epoch

    # ---- position

    @property
    def position_in_epoch(self) -> int:
        """Return the number of updates done in `current_epoch`. The data of the epoch continue at this position."""
        if not self.steps_per_epoch:
            return 0
        return max(0, self.global_step - self.current_epoch * self.steps_per_epoch)

    @property
    def epoch(self) -> int:
        """Return the number of the current epoch, counted from 1, for display."""
        return self.current_epoch + 1

    @property
    def total_epochs(self) -> int:
        """Return the number of epochs of the run, including a last one that is cut short; 0 while unknown."""
        return -(-self.expected_total_steps // self.steps_per_epoch) if self.steps_per_epoch else self._epochs

    @property
    def next_epoch(self) -> int:
        """Return the epoch (0-based) to which the next update belongs."""
        return self.global_step // self.steps_per_epoch if self.steps_per_epoch else self.current_epoch

    def get_progress_fraction(self) -> float:
        """Return the fraction of the run that is done, 0 to 1, in steps. While the number of steps is unknown, return the fraction in
        epochs; if the number of epochs is unknown too, return 0."""
        if self.expected_total_steps:
            return min(1.0, self.global_step / self.expected_total_steps)
        return min(1.0, self.current_epoch / self._epochs) if self._epochs else 0.0

    def is_fraction_point(self, fraction: float) -> bool:
        """Return True exactly at the step that crosses `fraction` of the run; False while the length of the run is unknown.

        The result depends on `global_step` alone, so it is the same for every caller and after a resume."""
        exact, step = fraction * self.expected_total_steps, self.global_step
        return exact > 0 and step - 1 <= exact <= step + 1 and step == max(1, first_step_at(exact))

    # ---- pending validation passes

    @property
    def partial_validation_indices(self) -> list[int]:
        """Return the indices of the pending partial validation passes."""
        return [i for stage, i in self.pending_validations if stage is TrainingStage.VALIDATION_PARTIAL_MASK_META and i is not None]

    def schedule_validation(self, validation_type: TrainingStage, partial_index: int | None = None) -> None:
        """Add a validation pass to the pending passes of the current step, unless it is already pending or completed at this step."""
        key = _pass_key(validation_type, partial_index)
        if self.validation_step != self.global_step:
            assert not self.pending_validations, f"step {self.validation_step} has pending validations: {self.pending_validations}"
            self.validation_step, self.completed_validations = self.global_step, []
        if key not in self.pending_validations and key not in self.completed_validations:
            self.pending_validations.append(key)

    def start_validation(self, validation_type: TrainingStage, partial_index: int | None = None) -> None:
        """Set `current_stage` to the stage of a pending validation pass."""
        key = _pass_key(validation_type, partial_index)
        assert key in self.pending_validations, f"{key} is not pending; call schedule_validation first"
        self.current_stage = key[0]

    def complete_validation(self, validation_type: TrainingStage, partial_index: int | None = None) -> None:
        """Move a validation pass from the pending to the completed passes. If no pass is pending any more, set `current_stage` to training.

        A pass that is already completed is not an error: its result may have been written before the process was killed."""
        key = _pass_key(validation_type, partial_index)
        assert key in self.pending_validations or key in self.completed_validations, f"{key} was not scheduled at this step"
        if key in self.pending_validations:
            self.pending_validations.remove(key)
            self.completed_validations.append(key)
        if not self.pending_validations:
            self.current_stage = TrainingStage.TRAINING

    def forget_completed_validations(self) -> None:
        """Delete the list of the completed passes, so that they can be scheduled again at this step."""
        self.completed_validations = []

    def has_pending_validations(self) -> bool:
        """Return True if a validation pass of the current step has not been completed."""
        return bool(self.pending_validations)

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Return the counters and validation passes as plain values for `state.json` of a checkpoint, which a person can read.

        `micro_batches`, over all processes, takes the place of `step`, which depends on the number of processes."""
        return {
            "current_stage": self.current_stage.value,
            "current_epoch": self.current_epoch,
            "micro_batches": self.step * self.world_size,
            "global_step": self.global_step,
            "samples_seen": self.samples_seen,
            "units_seen": self.units_seen,
            "expected_total_steps": self.expected_total_steps,
            "validation_step": self.validation_step,
            "pending_validations": [[stage.value, index] for stage, index in self.pending_validations],
            "completed_validations": [[stage.value, index] for stage, index in self.completed_validations],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the counters and validation passes from a checkpoint.

        If `expected_total_steps` is already set, it does not change: an allowed change of the configuration may make the run longer."""
        self.current_stage = TrainingStage(state["current_stage"])
        self.current_epoch = int(state["current_epoch"])
        self.step = int(state["micro_batches"]) // self.world_size if "micro_batches" in state else int(state["step"])  # older ones
        self.global_step, self.samples_seen = int(state["global_step"]), int(state["samples_seen"])
        self.units_seen = int(state.get("units_seen", 0))  # older checkpoints do not contain it
        self.expected_total_steps = self.expected_total_steps or int(state["expected_total_steps"])
        self.validation_step = int(state["validation_step"])
        self.pending_validations = [_pass_key(stage, index) for stage, index in state["pending_validations"]]
        self.completed_validations = [_pass_key(stage, index) for stage, index in state["completed_validations"]]


def _pass_key(stage: TrainingStage | str, partial_index: int | None) -> PassKey:
    stage = TrainingStage(stage)
    assert stage.is_validation, "training is not a validation pass"
    assert (partial_index is not None) == (stage is TrainingStage.VALIDATION_PARTIAL_MASK_META), (
        "a partial pass must have an index, other passes must not"
    )
    return stage, partial_index
