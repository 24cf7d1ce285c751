"""A second, tiny research program: two regression tasks on vectors, plugged into the same `main.py` flow from the outside.

    python main.py --config-dir tests/vectors/conf experiment=vectors

It proves the seam (law 8): nothing of the engine knows it, and it brings a metric of its own (`val/r2`).
"""

from tests.vectors.workload import build_workload

__all__ = ["build_workload"]
