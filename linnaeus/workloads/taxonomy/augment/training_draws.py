"""Draw the random parameters of training augmentation, which the pipelines on the host and on the device have in common."""

from dataclasses import dataclass

import numpy as np

from linnaeus.workloads.taxonomy.augment import colour, draws, geometry
from linnaeus.workloads.taxonomy.config import AugmentConfig


@dataclass(frozen=True)
class TrainingDraws:
    """Crops, flips, colours and erasing as functions of the keys of B positions, uint64 [B]."""

    config: AugmentConfig
    image_size: int

    def crops(self, sizes: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Return float64 [B, 4]: random crops (left, top, right, bottom). `sizes`: int [B, 2] (height, width)."""
        return geometry.crop_boxes(self.config, sizes, draws.uniform_draws(keys, draws.CROP, geometry.CROP_DRAWS))

    def flips(self, keys: np.ndarray) -> np.ndarray:
        """Return bool [B, 2]: mirror left-right, top-bottom."""
        probabilities = np.array([self.config.horizontal_flip, self.config.vertical_flip])
        return draws.uniform_draws(keys, draws.FLIP, 2) < probabilities

    def colours(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the matrices and grey factors of `colour.colour_maps`; None without changes of colour."""
        strengths = (self.config.brightness, self.config.contrast, self.config.saturation, self.config.hue)
        return colour.colour_maps(draws.uniform_draws(keys, draws.COLOUR, 4), *strengths) if any(strengths) else None

    def erased(self, keys: np.ndarray) -> np.ndarray | None:
        """Return int64 [B, 4]: rectangles to erase, of `geometry.erase_boxes`; None without erasing."""
        if self.config.erasing == 0:
            return None
        u = draws.uniform_draws(keys, draws.ERASE, geometry.ERASE_DRAWS)
        return geometry.erase_boxes(u, self.image_size, self.config.erasing)
