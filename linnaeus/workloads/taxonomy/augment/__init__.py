"""Augmentation of training photographs: geometry, colour, automatic policies, erasing, and the mixing of pairs.

All random numbers are drawn on the host, as functions of the key of a sample's position in the training order. Pairs are blended on the
device (`..preparation`), where the images can also be augmented (`on_device`).
"""

from linnaeus.workloads.taxonomy.augment.pipeline import AugmentationPipelineFactory, Pipeline

__all__ = ["AugmentationPipelineFactory", "Pipeline"]
