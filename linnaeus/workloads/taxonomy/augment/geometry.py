"""Crop photographs at random or centrally, resize them to the model's square, flip them, and erase random rectangles.

Crop boxes are (left, top, right, bottom). They are drawn in floating-point pixels and rounded to whole pixels."""

from collections.abc import Sequence

import numpy as np

from linnaeus.workloads.taxonomy.augment_config import AugmentConfig
from linnaeus.workloads.taxonomy.images.resizing import channels_first, resize

TRIES = 10  # candidates that are drawn for a crop or an erased rectangle; the first that fits is used
CROP_DRAWS = 2 * TRIES + 2
ERASE_AREA = (0.02, 1 / 3)  # share of the picture, the range of the paper
ERASE_RATIO = (0.3, 10 / 3)
ERASE_DRAWS = 2 * TRIES + 3
FILL = np.array([124, 116, 104], dtype=np.uint8)  # the ImageNet mean of `..inputs.preparation`: 0 after normalisation


def rectangles(
    area: np.ndarray, u_ratio: np.ndarray, ratio: Sequence[float], limits: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return width and height of the first of TRIES candidate rectangles that fits, float64 [B] each, and bool [B], True if a candidate
    fits.

    `area`: float64 [B, TRIES], areas of the candidates in pixels. `u_ratio`: uniform draws [B, TRIES]; the aspect ratios (width / height)
    of the candidates are log-uniform within `ratio`. `limits`: [B, 2], (height, width) of the image."""
    low, high = np.log(ratio[0]), np.log(ratio[1])
    aspect = np.exp(low + (high - low) * u_ratio)
    width, height = np.sqrt(area * aspect), np.sqrt(area / aspect)
    fits = (width <= limits[:, 1:2]) & (height <= limits[:, 0:1])
    row, first = np.arange(len(area)), fits.argmax(axis=1)
    return width[row, first], height[row, first], fits.any(axis=1)


def crop_boxes(config: AugmentConfig, sizes: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Return the boxes of random crops, float64 [B, 4]: squares with `config.crop_side`, otherwise as `random_boxes`. `sizes`: int [B, 2]
    (height, width) of the photographs. `u`: float64 [B, CROP_DRAWS], uniform draws."""
    if config.crop_side is not None:
        return square_boxes(sizes, u, config.crop_side)
    return random_boxes(sizes, u, config.crop_scale, config.crop_ratio)


def random_boxes(sizes: np.ndarray, u: np.ndarray, scale: Sequence[float], ratio: Sequence[float]) -> np.ndarray:
    """Return the boxes of random crops, float64 [B, 4]. The share of the photograph's area is uniform in `scale`, the aspect ratio
    log-uniform in `ratio`.

    The method is from Szegedy et al. 2015, "Going deeper with convolutions". If no candidate fits, the crop is the largest centred one of
    an allowed aspect ratio. `sizes` is int [B, 2] (height, width), `u` float64 [B, CROP_DRAWS] uniform draws."""
    full = sizes.astype(np.float64)
    area = full.prod(axis=1)[:, None] * (scale[0] + (scale[1] - scale[0]) * u[:, :TRIES])
    width, height, found = rectangles(area, u[:, TRIES : 2 * TRIES], ratio, full)
    left, top = u[:, -2] * (full[:, 1] - width), u[:, -1] * (full[:, 0] - height)
    boxes = np.stack([left, top, left + width, top + height], axis=1)
    boxes = np.where(found[:, None], boxes, centred_boxes(sizes, ratio))
    return np.clip(boxes, 0.0, full[:, [1, 0, 1, 0]])  # by rounding, left + width may exceed the side


def square_boxes(sizes: np.ndarray, u: np.ndarray, share: float) -> np.ndarray:
    """Return the boxes of square crops, float64 [B, 4]: whole pixels, random positions, and a side of `share` times the short side of the
    photograph.

    `sizes` is int [B, 2] (height, width), `u` float64 [B, CROP_DRAWS] uniform draws."""
    side = np.maximum(np.rint(share * sizes.min(axis=1)), 1.0)
    left, top = np.floor(u[:, -2] * (sizes[:, 1] - side + 1)), np.floor(u[:, -1] * (sizes[:, 0] - side + 1))
    return np.stack([left, top, left + side, top + side], axis=1)


def central_squares(sizes: np.ndarray, share: float) -> np.ndarray:
    """Return the boxes of central squares, float64 [B, 4]: whole pixels, and a side of `share` times the short side of the photograph.
    `sizes` is int [B, 2] (height, width)."""
    side = np.maximum(np.rint(share * sizes.min(axis=1)), 1.0)
    left, top = np.ceil((sizes[:, 1] - side) / 2), np.ceil((sizes[:, 0] - side) / 2)
    return np.stack([left, top, left + side, top + side], axis=1)


def centred_boxes(sizes: np.ndarray, ratio: Sequence[float]) -> np.ndarray:
    """Return the boxes of the largest centred crops whose aspect ratio (width / height) is in `ratio`, float64 [B, 4]. `sizes` is int
    [B, 2] (height, width)."""
    height, width = sizes[:, 0].astype(np.float64), sizes[:, 1].astype(np.float64)
    w, h = np.minimum(width, height * ratio[1]), np.minimum(height, width / ratio[0])
    left, top = (width - w) / 2, (height - h) / 2
    return np.stack([left, top, left + w, top + h], axis=1)


def whole_boxes(boxes: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return `boxes`, float64 [B, 4], rounded to whole pixels, int64 [B, 4]. Each result is at least one pixel wide and high. `sizes`: int
    [B, 2] (height, width) of the photographs."""
    found = np.floor(boxes + 0.5).astype(np.int64)
    found[:, :2] = np.minimum(found[:, :2], sizes[:, ::-1] - 1)
    found[:, 2:] = np.maximum(found[:, 2:], found[:, :2] + 1)
    return found


def resample(images: Sequence[np.ndarray], boxes: np.ndarray, size: int) -> np.ndarray:
    """Return the parts of `images` (each uint8 [H, W, 3]) inside `boxes` (float64 [B, 4]), resized to squares of side `size`: uint8 [B,
    size, size, 3]."""
    out = np.empty((len(images), size, size, 3), dtype=np.uint8)
    whole = whole_boxes(boxes, sizes_of(images)).tolist()
    for image, (left, top, right, bottom), row in zip(images, whole, out, strict=True):
        resize(image[top:bottom, left:right], row)
    return out


def sizes_of(images: Sequence[np.ndarray]) -> np.ndarray:
    """Return height and width of each photograph, int64 [B, 2]."""
    return np.array([image.shape[:2] for image in images], dtype=np.int64).reshape(-1, 2)


def flip(pictures: np.ndarray, horizontal: np.ndarray, vertical: np.ndarray) -> None:
    """Mirror pictures (uint8 [B, S, S, 3]) in place: left-right where bool [B] `horizontal` is True, top-bottom where bool [B] `vertical`
    is True."""
    for row in np.flatnonzero(horizontal):
        picture = channels_first(pictures[row])
        picture.copy_(picture.flip(3))  # numpy takes ten times as long
    for row in np.flatnonzero(vertical):
        pictures[row] = pictures[row, ::-1].copy()


def erase_boxes(u: np.ndarray, size: int, probability: float) -> np.ndarray:
    """Return the rectangles to erase in squares of `size` pixels, int64 [B, 4] (top, left, bottom, right); all 0 for an image that is not
    erased.

    This is random erasing (Zhong et al. 2017), with the given `probability` per image. `u` are uniform draws, float64 [B, ERASE_DRAWS]."""
    area = size * size * (ERASE_AREA[0] + (ERASE_AREA[1] - ERASE_AREA[0]) * u[:, :TRIES])
    width, height, found = rectangles(area, u[:, TRIES : 2 * TRIES], ERASE_RATIO, np.full((len(u), 2), float(size)))
    sides = np.maximum(1, np.rint(np.stack([height, width], axis=1))).astype(np.int64)
    corner = np.floor(u[:, -2:] * (size - sides + 1)).astype(np.int64)
    boxes = np.concatenate([corner, corner + sides], axis=1)
    return np.where(((u[:, -3] < probability) & found)[:, None], boxes, 0)


def erase(images: np.ndarray, boxes: np.ndarray) -> None:
    """Fill rectangles of `images`, uint8 [B, 3, S, S], with FILL, in place. `boxes`: int64 [B, 4] (top, left, bottom, right), as
    `erase_boxes` returns them."""
    for i in np.flatnonzero(boxes[:, 2] > boxes[:, 0]):
        top, left, bottom, right = boxes[i]
        images[i, :, top:bottom, left:right] = FILL[:, None, None]
