"""What a run is doing right now."""

from enum import StrEnum


class TrainingStage(StrEnum):
    """Training, or one of the validation passes; the value is what checkpoints and logs hold."""

    TRAINING = "training"
    VALIDATION_NORMAL = "validation_normal"
    VALIDATION_MASK_META = "validation_mask_meta"
    VALIDATION_PARTIAL_MASK_META = "validation_partial_mask_meta"

    @property
    def is_validation(self) -> bool:
        return self is not TrainingStage.TRAINING
