"""A timm vision transformer with several heads on standing random tensors: what `benchmarks/gradnorm.py` weighs the tasks of."""

from benchmarks.ranks.workload import build_workload

__all__ = ["build_workload"]
