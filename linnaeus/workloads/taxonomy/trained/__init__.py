"""Load a trained classifier from a run directory or a bundle (the folder that `linnaeus export` writes), predict with it, and export it.

This module imports neither the training loop nor Hydra nor a data source."""

from linnaeus.workloads.taxonomy.trained.answers import Prediction, Taxon
from linnaeus.workloads.taxonomy.trained.classifier_questions import questions
from linnaeus.workloads.taxonomy.trained.export.export_model import export_model
from linnaeus.workloads.taxonomy.trained.load_parts import load_model
from linnaeus.workloads.taxonomy.trained.trained_classifier import TrainedClassifier

__all__ = ["Prediction", "Taxon", "TrainedClassifier", "export_model", "load_model", "questions"]
