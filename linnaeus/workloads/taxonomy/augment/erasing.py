"""Random erasing (Zhong et al. 2017): a rectangle of the picture is replaced by the mean colour, which is zero once normalised."""

from __future__ import annotations

import numpy as np

from linnaeus.workloads.taxonomy.augment.geometry import TRIES, rectangles

AREA = (0.02, 1 / 3)  # share of the picture, the paper's range
RATIO = (0.3, 10 / 3)
FILL = np.array([124, 116, 104], dtype=np.uint8)  # the ImageNet mean, see `..preparation`
ERASE_DRAWS = 2 * TRIES + 3


def erase_boxes(u: np.ndarray, size: int, probability: float) -> np.ndarray:
    """int64 [B, 4] (top, left, bottom, right) in a square of `size` pixels, empty where nothing is erased; `u` [B, ERASE_DRAWS]."""
    area = size * size * (AREA[0] + (AREA[1] - AREA[0]) * u[:, :TRIES])
    width, height, found = rectangles(area, u[:, TRIES : 2 * TRIES], RATIO, np.full((len(u), 2), float(size)))
    sides = np.maximum(1, np.rint(np.stack([height, width], axis=1))).astype(np.int64)
    corner = np.floor(u[:, -2:] * (size - sides + 1)).astype(np.int64)
    boxes = np.concatenate([corner, corner + sides], axis=1)
    return np.where(((u[:, -3] < probability) & found)[:, None], boxes, 0)


def erase(images: np.ndarray, boxes: np.ndarray) -> None:
    """Fill the boxes of uint8 [B, 3, S, S] `images` in place."""
    for i in np.flatnonzero(boxes[:, 2] > boxes[:, 0]):
        top, left, bottom, right = boxes[i]
        images[i, :, top:bottom, left:right] = FILL[:, None, None]
