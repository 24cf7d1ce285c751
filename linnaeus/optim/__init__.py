"""Optimizers, parameter groups, learning-rate schedules, the optimizer update, averaged weights and growth of connections."""

from linnaeus.optim.build_optimizers import build_optimizer
from linnaeus.optim.growth import Growth, build_growth
from linnaeus.optim.lr_schedulers import LRSchedule, build_scheduler, scaled_lr
from linnaeus.optim.optimizers import Optimizers
from linnaeus.optim.param_groups import describe_groups

__all__ = ["Growth", "LRSchedule", "Optimizers", "build_growth", "build_optimizer", "build_scheduler", "describe_groups", "scaled_lr"]
