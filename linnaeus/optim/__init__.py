"""Optimizers, parameter groups, learning-rate schedules, the optimizer update, averaged weights and growth of connections."""

from linnaeus.optim.build_optimizers import build_optimizer
from linnaeus.optim.growth import Growth, build_growth
from linnaeus.optim.lr_schedulers import LRSchedule, build_scheduler, scaled_lr
from linnaeus.optim.optimizers import Optimizers

__all__ = ["Growth", "LRSchedule", "Optimizers", "build_growth", "build_optimizer", "build_scheduler", "scaled_lr"]
