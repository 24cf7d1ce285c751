"""Define the stages of a run (training and the kinds of validation) and list its validation passes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple


class TrainingStage(StrEnum):
    """Training, or a kind of validation pass. In checkpoints and logs a stage is written as its string value."""

    TRAINING = "training"
    VALIDATION_NORMAL = "validation_normal"
    VALIDATION_MASK_META = "validation_mask_meta"
    VALIDATION_PARTIAL_MASK_META = "validation_partial_mask_meta"

    @property
    def is_validation(self) -> bool:
        """Return True for every stage except TRAINING."""
        return self is not TrainingStage.TRAINING


class ValidationPass(NamedTuple):
    """A pass over the validation data. `key`: prefix of the names of its metrics (`val`, `val_mask_meta`, `val_mask_SPATIAL`).

    `masked`: metadata components that are masked for every sample. `partial_index`: index of the pass among the partial passes; None for a
    pass that is not partial."""

    key: str
    stage: TrainingStage
    partial_index: int | None = None
    masked: tuple[str, ...] = ()


def validation_passes(combinations: Sequence[tuple[str, ...]], components: tuple[str, ...]) -> list[ValidationPass]:
    """Return all validation passes that a run can make: normal, with all `components` masked, and with each of `combinations` masked."""
    passes = [ValidationPass("val", TrainingStage.VALIDATION_NORMAL)]
    if components:
        passes.append(ValidationPass("val_mask_meta", TrainingStage.VALIDATION_MASK_META, None, components))
    for index, masked in enumerate(combinations):
        passes.append(ValidationPass("val_mask_" + "_".join(masked), TrainingStage.VALIDATION_PARTIAL_MASK_META, index, masked))
    return passes
