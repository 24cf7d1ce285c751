"""Augmentation of training photographs: geometry, colour, automatic policies, erasing, and the mixing of pairs.

All random numbers are drawn on the host from the key of a position. Pairs are blended on the device (`..preparation`), where
the images can be augmented, too (`on_device`).
"""

from linnaeus.workloads.taxonomy.augment.pipeline import AugmentationPipelineFactory, Pipeline

__all__ = ["AugmentationPipelineFactory", "Pipeline"]
