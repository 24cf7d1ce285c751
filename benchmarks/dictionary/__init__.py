"""Dictionaries of linnaeus and of SAELens on the activations of a language model and of a classifier: quality and time."""
