"""Use a trained language model of a run, or of a folder of the library transformers: generate text, score texts, export a run."""

from linnaeus.workloads.language.trained.export_transformers import export_model
from linnaeus.workloads.language.trained.load_language_model import load_model
from linnaeus.workloads.language.trained.text_questions import questions

__all__ = ["export_model", "load_model", "questions"]
