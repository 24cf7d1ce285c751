"""Count the steps, samples and epochs of a run, define its stages, and compare the counts with the planned numbers."""

from linnaeus.progress.consistency import TrainingConsistencyChecker
from linnaeus.progress.stages import TrainingStage, ValidationPass
from linnaeus.progress.training_progress import TrainingProgress

__all__ = ["TrainingConsistencyChecker", "TrainingProgress", "TrainingStage", "ValidationPass"]
