"""Load a trained sparse dictionary, to encode and edit activations of a network, or to export the dictionary for SAELens."""

from linnaeus.workloads.dictionary.trained.export_dictionary import export_model
from linnaeus.workloads.dictionary.trained.load_dictionary import load_model

__all__ = ["export_model", "load_model"]
