"""`TrainingProgress`: the one counter of a run (law 4), and which validation passes its current step still owes.

`global_step` counts optimizer updates and moves at that instant; data position, schedules, logs and checkpoints are functions
of it. On the hot path: an update costs well under a microsecond.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from linnaeus.durations import first_step_at
from linnaeus.progress.stages import TrainingStage

PassKey = tuple[TrainingStage, int | None]  # a validation pass: its stage and, for a partial one, its index


class TrainingProgress:
    """Counters of a run.

    current_stage: what it is doing. current_epoch: 0-based. step: micro-batches this process has run. global_step: optimizer
    updates. samples_seen: training samples over all processes, the stand-ins of empty micro-batches not counted.
    units_seen: what these samples held of the workload's own units (tokens); 0 where it has none.
    expected_total_steps: updates of the whole run, set before the first batch; 0 while unknown. steps_per_epoch: 0 while unknown.
    pending_validations, completed_validations: (stage, partial index) of the passes owed and done at this very step.
    """

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
        """`config` needs no more than `trainer.length`, and not even that: it serves where the total is not known yet."""
        assert world_size >= 1 and accumulation_steps >= 1
        self.world_size, self.accumulation_steps = world_size, accumulation_steps
        self.current_stage = TrainingStage.TRAINING
        self.current_epoch = self.step = self.global_step = self.samples_seen = self.units_seen = 0
        self.steps_per_epoch = 0
        self.pending_validations: list[PassKey] = []
        self.completed_validations: list[PassKey] = []
        self.validation_step = 0  # the step the two lists belong to
        length = re.fullmatch(r"(\d+)(steps?|epochs?)", str(getattr(getattr(config, "trainer", None), "length", "")))
        self.expected_total_steps = int(length[1]) if length and length[2].startswith("step") else 0
        self._epochs = int(length[1]) if length and length[2].startswith("epoch") else 0

    def set_length(self, total_steps: int, steps_per_epoch: int) -> None:
        """Say how long the run is, before its first batch."""
        self.expected_total_steps, self.steps_per_epoch = total_steps, steps_per_epoch

    # ---- counting

    def start_training_epoch(self, epoch: int) -> None:
        """Train on in `epoch` (0-based), from its beginning or, after a resume, from where `global_step` stands."""
        assert not self.pending_validations, f"step {self.validation_step} still owes {self.pending_validations}"
        assert not self.steps_per_epoch or self.global_step <= (epoch + 1) * self.steps_per_epoch, (
            f"epoch {epoch} has passed: step {self.global_step} with {self.steps_per_epoch} steps per epoch"
        )
        self.current_epoch, self.current_stage = epoch, TrainingStage.TRAINING

    start_epoch = start_training_epoch

    def update_step(self, batch_size: int, is_accumulation_step: bool) -> bool:
        """Count a micro-batch of `batch_size` samples on this process, as many on every other. `is_accumulation_step`: its
        gradient was only accumulated. Returns True when it was an optimizer step."""
        self.step += 1
        self.samples_seen += batch_size * self.world_size
        if is_accumulation_step:
            return False
        self.global_step += 1
        return True

    def update_window(self, samples: int, micro_batches: int, units: int = 0) -> None:
        """Count one update: a window of `micro_batches` here, and `samples` with `units` in them over all processes. Exact where a
        partial last batch leaves processes with unequal shares, which `update_step` alone cannot know."""
        seen = self.samples_seen + samples
        self.step += micro_batches - 1
        self.update_step(0, False)
        self.samples_seen = seen
        self.units_seen += units

    def end_epoch(self) -> None:
        """An epoch's last update is done; the counters have moved already. Its validations may still be owed."""
        assert not self.steps_per_epoch or self.global_step <= (self.current_epoch + 1) * self.steps_per_epoch

    # ---- where the run stands

    @property
    def position_in_epoch(self) -> int:
        """Updates done in `current_epoch`: where its data continue."""
        if not self.steps_per_epoch:
            return 0
        return max(0, self.global_step - self.current_epoch * self.steps_per_epoch)

    @property
    def next_epoch(self) -> int:
        """The epoch the next update belongs to."""
        return self.global_step // self.steps_per_epoch if self.steps_per_epoch else self.current_epoch

    def get_progress_fraction(self) -> float:
        """Share of the run that is done, 0 to 1; by epochs while the total is unknown, 0 where neither is known."""
        if self.expected_total_steps:
            return min(1.0, self.global_step / self.expected_total_steps)
        return min(1.0, self.current_epoch / self._epochs) if self._epochs else 0.0

    def is_fraction_point(self, fraction: float) -> bool:
        """True exactly at the step that crosses `fraction` of the run: a function of this step and the one before it, so any
        number of callers agree, also after a resume."""
        return self.global_step > 0 and self.global_step == max(1, first_step_at(fraction * self.expected_total_steps))

    # ---- validation passes owed

    @property
    def partial_validation_indices(self) -> list[int]:
        """Indices of the partial passes still owed."""
        return [i for stage, i in self.pending_validations if stage is TrainingStage.VALIDATION_PARTIAL_MASK_META and i is not None]

    def schedule_validation(self, stage: TrainingStage, partial_index: int | None = None) -> None:
        """Owe a pass at this step. One that is owed or done at this step already is not owed again."""
        key = _pass_key(stage, partial_index)
        if self.validation_step != self.global_step:
            assert not self.pending_validations, f"step {self.validation_step} still owes {self.pending_validations}"
            self.validation_step, self.completed_validations = self.global_step, []
        if key not in self.pending_validations and key not in self.completed_validations:
            self.pending_validations.append(key)

    def start_validation(self, stage: TrainingStage, partial_index: int | None = None) -> None:
        key = _pass_key(stage, partial_index)
        assert key in self.pending_validations, f"{key} is not owed; schedule it first"
        self.current_stage = key[0]

    def complete_validation(self, stage: TrainingStage, partial_index: int | None = None) -> None:
        """A pass has its result, from a run just now or from before a kill; saying so twice is fine."""
        key = _pass_key(stage, partial_index)
        assert key in self.pending_validations or key in self.completed_validations, f"{key} was never owed"
        if key in self.pending_validations:
            self.pending_validations.remove(key)
            self.completed_validations.append(key)
        self.current_stage = TrainingStage.TRAINING

    def has_pending_validations(self) -> bool:
        return bool(self.pending_validations)

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """Plain values a person can read. The length is not among them: it follows from the config."""
        return {
            "current_stage": self.current_stage.value,
            "current_epoch": self.current_epoch,
            "step": self.step,
            "global_step": self.global_step,
            "samples_seen": self.samples_seen,
            "units_seen": self.units_seen,
            "expected_total_steps": self.expected_total_steps,
            "validation_step": self.validation_step,
            "pending_validations": [[stage.value, index] for stage, index in self.pending_validations],
            "completed_validations": [[stage.value, index] for stage, index in self.completed_validations],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """A total that has been set stands (the config may allow a longer run); a pass that was cut off is still owed."""
        self.current_stage = TrainingStage(state["current_stage"])
        self.current_epoch, self.step = int(state["current_epoch"]), int(state["step"])
        self.global_step, self.samples_seen = int(state["global_step"]), int(state["samples_seen"])
        self.units_seen = int(state.get("units_seen", 0))  # older checkpoints have none: counted from there on
        self.expected_total_steps = self.expected_total_steps or int(state["expected_total_steps"])
        self.validation_step = int(state["validation_step"])
        self.pending_validations = [_pass_key(stage, index) for stage, index in state["pending_validations"]]
        self.completed_validations = [_pass_key(stage, index) for stage, index in state["completed_validations"]]


def _pass_key(stage: TrainingStage | str, partial_index: int | None) -> PassKey:
    stage = TrainingStage(stage)
    assert stage.is_validation, "training is no validation pass"
    assert (partial_index is not None) == (stage is TrainingStage.VALIDATION_PARTIAL_MASK_META), (
        "partial passes, and only they, have an index"
    )
    return stage, partial_index
