"""What happens when: durations become steps once, and one object answers whether something is due. No torch in here."""

import linnaeus.config  # noqa: F401  first: its loader reads `durations` while this package is being imported
from linnaeus.schedule.durations import Duration
from linnaeus.schedule.early_stopping import EarlyStopping, StopConditions
from linnaeus.schedule.every import Every, TimeTrigger
from linnaeus.schedule.length import TrainingLength, accumulation_steps, training_length
from linnaeus.schedule.ops_schedule import OpsSchedule
from linnaeus.schedule.picture import schedule_picture
from linnaeus.schedule.ramps import Ramp
from linnaeus.schedule.resolved import ResolvedSchedule, resolve_all_schedule_params
from linnaeus.schedule.summary import schedule_summary

__all__ = [
    "Duration",
    "EarlyStopping",
    "Every",
    "OpsSchedule",
    "Ramp",
    "ResolvedSchedule",
    "StopConditions",
    "TimeTrigger",
    "TrainingLength",
    "accumulation_steps",
    "resolve_all_schedule_params",
    "schedule_picture",
    "schedule_summary",
    "training_length",
]
