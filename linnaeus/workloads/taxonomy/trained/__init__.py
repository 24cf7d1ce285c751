"""Load a trained classifier from a run directory or a bundle (the folder that `linnaeus export` writes), predict with it, and export it.

This module imports neither the training loop nor Hydra nor a data source.

Each package imports only packages above it in this list:

probabilities  from the probabilities of the network to predictions; calibration
restrictions   taxa to which predictions are restricted
classifier     the network with its description, the bundle, and `load_model`
photographs    list the photographs of a command
batches        read and compute many photographs

After them come the commands: predict, embed (and nearest), calibrate, evaluate, export."""

from linnaeus.workloads.taxonomy.trained.classifier.load_parts import load_model
from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier
from linnaeus.workloads.taxonomy.trained.classifier_questions import questions
from linnaeus.workloads.taxonomy.trained.export.export_model import export_model
from linnaeus.workloads.taxonomy.trained.probabilities.answers import Prediction, Taxon

__all__ = ["Prediction", "Taxon", "TrainedClassifier", "export_model", "load_model", "questions"]
