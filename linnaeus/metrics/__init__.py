"""Metrics of a run: sums of training metrics between two log rows, and results of validation passes."""

from linnaeus.metrics.tracker import MetricsTracker, StepMetricsLogger

__all__ = ["MetricsTracker", "StepMetricsLogger"]
