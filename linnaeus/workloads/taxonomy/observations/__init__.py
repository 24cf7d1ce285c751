"""Represent the labels and metadata of all observations (`Source`), encode them for the network, and describe them in the run directory."""

from linnaeus.workloads.taxonomy.observations.source import TRAIN, VALIDATION, ImageReader, Metadata, Source, UndecodableImage

__all__ = ["TRAIN", "VALIDATION", "ImageReader", "Metadata", "Source", "UndecodableImage"]
