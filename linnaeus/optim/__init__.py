"""Optimizers, parameter groups and learning-rate schedules."""

from linnaeus.optim.build import build_optimizer
from linnaeus.optim.groups import describe_groups
from linnaeus.optim.lr_schedulers import LRSchedule, build_scheduler
from linnaeus.optim.optimizers import Optimizers

__all__ = ["LRSchedule", "Optimizers", "build_optimizer", "build_scheduler", "describe_groups"]
