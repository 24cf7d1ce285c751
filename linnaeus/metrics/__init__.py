"""Compute the metrics of a run: means of training metrics for each log row, and the results of validation passes."""

from linnaeus.metrics.tracker import MetricsTracker, StepMetricsLogger

__all__ = ["MetricsTracker", "StepMetricsLogger"]
