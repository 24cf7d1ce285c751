"""Stages of a run and its validation passes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple


class TrainingStage(StrEnum):
    """Training or a kind of validation pass. Checkpoints and logs contain the value."""

    TRAINING = "training"
    VALIDATION_NORMAL = "validation_normal"
    VALIDATION_MASK_META = "validation_mask_meta"
    VALIDATION_PARTIAL_MASK_META = "validation_partial_mask_meta"

    @property
    def is_validation(self) -> bool:
        """True for every stage but training."""
        return self is not TrainingStage.TRAINING


class ValidationPass(NamedTuple):
    """A validation pass. key: the prefix of its metrics (`val`, `val_mask_meta`, `val_mask_SPATIAL`). masked: metadata components that
    are masked for every sample."""

    key: str
    stage: TrainingStage
    partial_index: int | None = None
    masked: tuple[str, ...] = ()


def validation_passes(combinations: Sequence[tuple[str, ...]], components: tuple[str, ...]) -> list[ValidationPass]:
    """Return the passes a run can make: normal, all `components` masked, and each of `combinations` masked, numbered from 0."""
    passes = [ValidationPass("val", TrainingStage.VALIDATION_NORMAL)]
    if components:
        passes.append(ValidationPass("val_mask_meta", TrainingStage.VALIDATION_MASK_META, None, components))
    for index, masked in enumerate(combinations):
        passes.append(ValidationPass("val_mask_" + "_".join(masked), TrainingStage.VALIDATION_PARTIAL_MASK_META, index, masked))
    return passes
