"""Augmentation of training photographs: geometry, colour, automatic augmentation (the "policy": RandAugment or TrivialAugment), erasing,
and the mixing of pairs.

All random numbers are drawn on the host, as functions of a key: a hash of the seed and of the sample's epoch and position in the training
order. Pairs are blended on the device (`..inputs.preparation`), where the images can also be augmented (`on_device`)."""

from linnaeus.workloads.taxonomy.augment.pipeline import AugmentationPipelineFactory, Pipeline

__all__ = ["AugmentationPipelineFactory", "Pipeline"]
