"""Draw the random parameters of training augmentation. The pipelines on the host and on the device both use this module."""

from dataclasses import dataclass

import numpy as np

from linnaeus.workloads.taxonomy.augment import colour, draws, geometry
from linnaeus.workloads.taxonomy.augment_config import AugmentConfig


@dataclass(frozen=True)
class TrainingDraws:
    """Random parameters of crops, flips, colours and erasing. Each method takes `keys`, uint64 [B] (`draws.sample_keys`), and its result is
    a function of them."""

    config: AugmentConfig
    image_size: int

    def crops(self, sizes: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Return the boxes of random crops (left, top, right, bottom), float64 [B, 4]. `sizes`: int [B, 2] (height, width)."""
        return geometry.crop_boxes(self.config, sizes, draws.uniform_draws(keys, draws.CROP, geometry.CROP_DRAWS))

    def flips(self, keys: np.ndarray) -> np.ndarray:
        """Return bool [B, 2]: True to mirror the picture left-right (column 0), top-bottom (column 1)."""
        probabilities = np.array([self.config.horizontal_flip, self.config.vertical_flip])
        return draws.uniform_draws(keys, draws.FLIP, 2) < probabilities

    def colours(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Return colour maps, the matrices and grey factors of `colour.colour_maps`; None if colours are not changed."""
        strengths = (self.config.brightness, self.config.contrast, self.config.saturation, self.config.hue)
        return colour.colour_maps(draws.uniform_draws(keys, draws.COLOUR, 4), *strengths) if any(strengths) else None

    def erased(self, keys: np.ndarray) -> np.ndarray | None:
        """Return the rectangles to erase, as `geometry.erase_boxes` does, int64 [B, 4]; None if nothing is erased."""
        if self.config.erasing == 0:
            return None
        u = draws.uniform_draws(keys, draws.ERASE, geometry.ERASE_DRAWS)
        return geometry.erase_boxes(u, self.image_size, self.config.erasing)
