"""Metrics of a run: what is accumulated between log rows, and what validation passes said."""

from linnaeus.metrics.tracker import MetricsTracker, StepMetricsLogger

__all__ = ["MetricsTracker", "StepMetricsLogger"]
