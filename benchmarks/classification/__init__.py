"""A workload that costs nothing but its model: standing tensors and one classification task, for timing the loop itself."""

from benchmarks.classification.workload import build_workload

__all__ = ["build_workload"]
