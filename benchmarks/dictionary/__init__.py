"""Benchmark of the dictionaries of linnaeus and of SAELens on activations of a language model and of a classifier: quality and time."""
