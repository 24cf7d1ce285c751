"""Where a training crop lies, and how a crop becomes a square of the model's size.

Boxes are in floating-point pixels, (left, top, right, bottom). Resizing is Pillow's antialiased bilinear filter with a box: fixed-point
C, the same bits wherever it runs; about 30 us for a 48-pixel square, 0.7 ms from 500 to 224 pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

TRIES = 10  # candidates of a crop or an erased rectangle; the first that fits is taken
CROP_DRAWS = 2 * TRIES + 2
REDUCING_GAP = 3.0  # Pillow averages whole blocks first while what is left is still 3 times too large: no visible difference


def rectangles(
    area: np.ndarray, u_ratio: np.ndarray, ratio: Sequence[float], limits: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Width and height of the first of the candidates that fits, float64 [B] each, and whether one does, bool [B].

    `area` float64 [B, TRIES] in pixels; `u_ratio` uniform draws [B, TRIES] for a log-uniform aspect ratio (width / height);
    `limits` [B, 2] is the (height, width) to fit in."""
    low, high = np.log(ratio[0]), np.log(ratio[1])
    aspect = np.exp(low + (high - low) * u_ratio)
    width, height = np.sqrt(area * aspect), np.sqrt(area / aspect)
    fits = (width <= limits[:, 1:2]) & (height <= limits[:, 0:1])
    row, first = np.arange(len(area)), fits.argmax(axis=1)
    return width[row, first], height[row, first], fits.any(axis=1)


def random_boxes(sizes: np.ndarray, u: np.ndarray, scale: Sequence[float], ratio: Sequence[float]) -> np.ndarray:
    """float64 [B, 4] crops that take a uniform share of the area in `scale` at a log-uniform aspect in `ratio`
    (Szegedy et al. 2015, "Going deeper with convolutions"); the largest centred crop of an allowed aspect where none fits.

    `sizes` int [B, 2] (height, width); `u` float64 [B, CROP_DRAWS]."""
    full = sizes.astype(np.float64)
    area = full.prod(axis=1)[:, None] * (scale[0] + (scale[1] - scale[0]) * u[:, :TRIES])
    width, height, found = rectangles(area, u[:, TRIES : 2 * TRIES], ratio, full)
    left, top = u[:, -2] * (full[:, 1] - width), u[:, -1] * (full[:, 0] - height)
    boxes = np.stack([left, top, left + width, top + height], axis=1)
    boxes = np.where(found[:, None], boxes, centred_boxes(sizes, ratio))
    return np.clip(boxes, 0.0, full[:, [1, 0, 1, 0]])  # left + width may exceed the side by a rounding


def centred_boxes(sizes: np.ndarray, ratio: Sequence[float] = (1.0, 1.0)) -> np.ndarray:
    """float64 [B, 4]: the largest centred crops whose aspect (width / height) lies in `ratio`; by default the central square."""
    height, width = sizes[:, 0].astype(np.float64), sizes[:, 1].astype(np.float64)
    w, h = np.minimum(width, height * ratio[1]), np.minimum(height, width / ratio[0])
    left, top = (width - w) / 2, (height - h) / 2
    return np.stack([left, top, left + w, top + h], axis=1)


def resample(image: np.ndarray, box: Sequence[float], size: int) -> Image.Image:
    """The part of uint8 [H, W, 3] `image` inside `box`, as a square RGB picture of `size` pixels."""
    left, top, right, bottom = box
    x0, y0, x1, y1 = int(left), int(top), int(np.ceil(right)), int(np.ceil(bottom))
    picture = Image.fromarray(image[y0:y1, x0:x1])  # only what is needed is copied: photographs may be large
    inner = (left - x0, top - y0, right - x0, bottom - y0)
    if picture.size == (size, size) and inner == (0.0, 0.0, size, size):
        return picture
    return picture.resize((size, size), Image.Resampling.BILINEAR, box=inner, reducing_gap=REDUCING_GAP)


def flip(picture: Image.Image, horizontal: bool, vertical: bool) -> Image.Image:
    if horizontal:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if vertical:
        picture = picture.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    return picture
