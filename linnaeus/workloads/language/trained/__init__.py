"""Trained language models in use: a model of a run or of a folder of transformers generates text and scores it."""

from linnaeus.workloads.language.trained.load_language_model import load_model

__all__ = ["load_model"]
