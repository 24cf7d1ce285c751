"""Use a trained sparse dictionary: encode activations, edit the activations of the model, export it for SAELens."""

from linnaeus.workloads.dictionary.trained.export_dictionary import export_model
from linnaeus.workloads.dictionary.trained.load_dictionary import load_model

__all__ = ["export_model", "load_model"]
