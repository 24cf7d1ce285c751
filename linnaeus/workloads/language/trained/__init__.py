"""Trained language models in use: a model of a run or of a folder of transformers generates text and scores it; a run is exported."""

from linnaeus.workloads.language.trained.export_transformers import export_model
from linnaeus.workloads.language.trained.load_language_model import load_model

__all__ = ["export_model", "load_model"]
