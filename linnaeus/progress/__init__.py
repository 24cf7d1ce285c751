"""Keep the one counter of a run, its stages, and the check of the counter against the plan."""

from linnaeus.progress.consistency import TrainingConsistencyChecker
from linnaeus.progress.stages import TrainingStage, ValidationPass
from linnaeus.progress.training_progress import TrainingProgress

__all__ = ["TrainingConsistencyChecker", "TrainingProgress", "TrainingStage", "ValidationPass"]
