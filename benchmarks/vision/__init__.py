"""Benchmark of the taxonomy workload on a GPU: training steps and whole epochs of image classifiers; see `__main__.py`."""
