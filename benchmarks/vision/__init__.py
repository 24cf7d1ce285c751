"""Benchmark of the taxonomy workload on a GPU: training speed and start-up time of image classifiers; see `__main__.py`."""
