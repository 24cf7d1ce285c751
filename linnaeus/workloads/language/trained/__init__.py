"""Generate text with a trained language model, score texts, and export a run. A model is that of a run or of a transformers folder."""

from linnaeus.workloads.language.trained.export_transformers import export_model
from linnaeus.workloads.language.trained.load_language_model import load_model

__all__ = ["export_model", "load_model"]
