"""Schedule of a run: convert its durations to steps once, and compute which events, ramps and curriculum phases apply at a step.

This package does not import torch, so that `linnaeus --help` starts quickly."""

from linnaeus.schedule.early_stopping import EarlyStopping
from linnaeus.schedule.length import TrainingLength, accumulation_steps, micro_batch_size, training_length
from linnaeus.schedule.ops_schedule import OpsSchedule
from linnaeus.schedule.resolved import ResolvedSchedule, resolve_all_schedule_params

__all__ = ["EarlyStopping", "OpsSchedule", "ResolvedSchedule", "TrainingLength"]
__all__ += ["accumulation_steps", "micro_batch_size", "resolve_all_schedule_params", "training_length"]
