"""Optimizers, parameter groups and learning-rate schedules."""

from linnaeus.optim.build_optimizers import build_optimizer
from linnaeus.optim.groups import describe_groups
from linnaeus.optim.lr_schedulers import LRSchedule, build_scheduler, scaled_lr
from linnaeus.optim.optimizers import Optimizers

__all__ = ["LRSchedule", "Optimizers", "build_optimizer", "build_scheduler", "describe_groups", "scaled_lr"]
