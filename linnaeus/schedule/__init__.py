"""Schedule of a run: durations converted to steps once, and the events, ramps and phases they define. Does not import torch."""

from linnaeus.schedule.early_stopping import EarlyStopping, StopConditions
from linnaeus.schedule.events import Every, Ramp, TimeTrigger
from linnaeus.schedule.length import TrainingLength, accumulation_steps, training_length
from linnaeus.schedule.ops_schedule import OpsSchedule
from linnaeus.schedule.resolved import ResolvedSchedule, resolve_all_schedule_params

__all__ = [
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
    "training_length",
]
