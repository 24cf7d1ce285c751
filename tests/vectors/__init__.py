"""A second, tiny research program: two regression tasks on vectors, with a metric of its own (`val/r2`). It is plugged into the flow of
`main.py` from outside (law 8):

    python main.py --config-dir tests/vectors/conf experiment=vectors
"""

from tests.vectors.workload import VectorsWorkload as build_workload

__all__ = ["build_workload"]
