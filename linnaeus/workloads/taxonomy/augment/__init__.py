"""What is done to training photographs: geometry, colour, automatic policies, erasing, and the mixing of pairs.

Everything is drawn on the host from a position's key; the blending of pairs is done on the device (`..preparation`).
"""

from linnaeus.workloads.taxonomy.augment.pipeline import AugmentationPipelineFactory

__all__ = ["AugmentationPipelineFactory"]
