"""Where a run is: the one counter, its stages, the check against the plan, and the line that tells a person."""

from linnaeus.progress.consistency import TrainingConsistencyChecker
from linnaeus.progress.report import format_duration, report_line
from linnaeus.progress.stages import TrainingStage
from linnaeus.progress.training_progress import TrainingProgress

__all__ = ["TrainingConsistencyChecker", "TrainingProgress", "TrainingStage", "format_duration", "report_line"]
