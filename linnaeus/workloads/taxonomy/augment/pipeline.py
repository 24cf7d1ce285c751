"""From decoded photographs of any size to one uint8 tensor: crop and resize, flips, policy, colour, erasing.

`AugmentationPipelineFactory(config.augment, image_size).build(training)` gives a callable on (images, keys). What happens to a
sample is a function of its own key, whatever batch it is in. `augment=none` is the same pipeline with neutral values: it takes the
central square, as validation does. Normalisation, and the blending of pairs, happen on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.augment import colour, draws, erasing, geometry, policy
from linnaeus.workloads.taxonomy.config import AugmentConfig


class Pipeline(Protocol):
    def __call__(self, images: Sequence[np.ndarray], keys: np.ndarray) -> Tensor:
        """uint8 [B, 3, S, S], contiguous, of uint8 [H, W, 3] photographs and uint64 [B] keys of their positions."""
        ...


class AugmentationPipelineFactory:
    """Checks the configuration once and builds the pipeline of training or validation."""

    def __init__(self, config: AugmentConfig, image_size: int) -> None:
        _check_range("crop_scale", config.crop_scale, high=1.0)
        _check_range("crop_ratio", config.crop_ratio, high=float("inf"))
        self.config, self.image_size = config, image_size

    def build(self, training: bool) -> Pipeline:
        if training:
            return TrainingPipeline(self.config, self.image_size)
        return ValidationPipeline(self.image_size)


class ValidationPipeline:
    """The central square, resized; draws nothing."""

    def __init__(self, image_size: int) -> None:
        self.image_size = image_size

    def __call__(self, images: Sequence[np.ndarray], keys: np.ndarray) -> Tensor:
        boxes = geometry.centred_boxes(_sizes(images)).tolist()
        pictures = [geometry.resample(image, box, self.image_size) for image, box in zip(images, boxes, strict=True)]
        return torch.from_numpy(_stack(pictures, self.image_size))


class TrainingPipeline:
    """What the configuration asks for, in the order of the module's first line."""

    def __init__(self, config: AugmentConfig, image_size: int) -> None:
        self.config, self.image_size = config, image_size
        self.policy = policy.build_policy(config)
        self.colours = (config.brightness, config.contrast, config.saturation, config.hue)

    def __call__(self, images: Sequence[np.ndarray], keys: np.ndarray) -> Tensor:
        out = _stack(self._pictures(images, keys), self.image_size)
        if any(self.colours):
            colour.apply_colour(out, *colour.colour_maps(draws.draws(keys, draws.COLOUR, 4), *self.colours))
        if self.config.erasing > 0:
            u = draws.draws(keys, draws.ERASE, erasing.ERASE_DRAWS)
            erasing.erase(out, erasing.erase_boxes(u, self.image_size, self.config.erasing))
        return torch.from_numpy(out)

    def _pictures(self, images: Sequence[np.ndarray], keys: np.ndarray) -> list[Image.Image]:
        u = draws.draws(keys, draws.CROP, geometry.CROP_DRAWS)
        boxes = geometry.random_boxes(_sizes(images), u, self.config.crop_scale, self.config.crop_ratio).tolist()
        chances = np.array([self.config.horizontal_flip, self.config.vertical_flip])
        flips = (draws.draws(keys, draws.FLIP, 2) < chances).tolist()
        pictures = [
            geometry.flip(geometry.resample(image, box, self.image_size), *flip)
            for image, box, flip in zip(images, boxes, flips, strict=True)
        ]
        if self.policy is None:
            return pictures
        return [policy.apply_policy(self.policy, p, int(k)) for p, k in zip(pictures, draws.policy_keys(keys), strict=True)]


def _check_range(name: str, values: Sequence[float], high: float) -> None:
    if len(values) != 2 or not 0 < values[0] <= values[1] <= high:
        limit = "" if high == float("inf") else f" <= {high:g}"
        raise ConfigError(f"augment.{name}={list(values)} must be two numbers, 0 < smallest <= largest{limit}")


def _sizes(images: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([image.shape[:2] for image in images], dtype=np.int64).reshape(-1, 2)


def _stack(pictures: Sequence[Image.Image], size: int) -> np.ndarray:
    """uint8 [B, 3, S, S] of RGB pictures."""
    out = np.empty((len(pictures), size, size, 3), dtype=np.uint8)
    for row, picture in zip(out, pictures, strict=True):
        row[...] = np.asarray(picture)
    return np.ascontiguousarray(out.transpose(0, 3, 1, 2))
