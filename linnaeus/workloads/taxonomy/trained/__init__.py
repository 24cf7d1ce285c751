"""Trained classifiers in use: load a run or a bundle, predict, export. Nothing here imports the training loop, Hydra or a data source."""

from linnaeus.workloads.taxonomy.trained.answers import Prediction, Taxon
from linnaeus.workloads.taxonomy.trained.export.export_model import export_model
from linnaeus.workloads.taxonomy.trained.load_parts import load_model
from linnaeus.workloads.taxonomy.trained.trained_classifier import TrainedClassifier

__all__ = ["Prediction", "Taxon", "TrainedClassifier", "export_model", "load_model"]
