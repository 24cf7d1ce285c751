"""Where a run is: the one counter, its stages, the check against the plan, and the reports that tell a person."""

from linnaeus.progress.consistency import TrainingConsistencyChecker
from linnaeus.progress.report import format_duration
from linnaeus.progress.reporter import Reporter
from linnaeus.progress.stages import TrainingStage
from linnaeus.progress.standing import Standing
from linnaeus.progress.training_progress import TrainingProgress

__all__ = ["Reporter", "Standing", "TrainingConsistencyChecker", "TrainingProgress", "TrainingStage", "format_duration"]
