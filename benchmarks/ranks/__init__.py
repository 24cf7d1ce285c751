"""A workload with several tasks for `benchmarks/gradnorm.py`: a timm vision transformer with several heads on fixed random tensors."""

from benchmarks.ranks.workload import build_workload

__all__ = ["build_workload"]
