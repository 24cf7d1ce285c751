"""A workload with one classification task on fixed tensors in memory, so that almost all time is spent in the model and the training
loop.
"""

from benchmarks.classification.workload import build_workload

__all__ = ["build_workload"]
