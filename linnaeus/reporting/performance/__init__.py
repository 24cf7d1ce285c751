"""Measure the performance of a run: throughput, memory, the state of a GPU, and processes that are slower than the others."""
