"""Random and central crops, resizing to the model's square, flips, and random erasing.

Crop boxes are (left, top, right, bottom) in floating-point pixels. Crops are resized by Pillow's antialiased bilinear filter with a box,
in fixed-point C with the same bits on every machine: about 30 us for a 48-pixel square, 0.7 ms from 500 to 224 pixels.
"""

from collections.abc import Sequence

import numpy as np
from PIL import Image

TRIES = 10  # candidates of a crop or an erased rectangle; the first that fits is used
CROP_DRAWS = 2 * TRIES + 2
REDUCING_GAP = 3.0  # Pillow averages blocks of pixels first, down to 3 times the target size: no visible difference
ERASE_AREA = (0.02, 1 / 3)  # share of the picture, the range of the paper
ERASE_RATIO = (0.3, 10 / 3)
ERASE_DRAWS = 2 * TRIES + 3
FILL = np.array([124, 116, 104], dtype=np.uint8)  # the ImageNet mean of `..preparation`: zero once normalised


def rectangles(
    area: np.ndarray, u_ratio: np.ndarray, ratio: Sequence[float], limits: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return width and height of the first candidate that fits, float64 [B] each, and bool [B], True if one fits.

    `area` is float64 [B, TRIES] in pixels. `u_ratio` are uniform draws [B, TRIES] for a log-uniform aspect ratio (width / height).
    `limits` [B, 2] is the (height, width) to fit in."""
    low, high = np.log(ratio[0]), np.log(ratio[1])
    aspect = np.exp(low + (high - low) * u_ratio)
    width, height = np.sqrt(area * aspect), np.sqrt(area / aspect)
    fits = (width <= limits[:, 1:2]) & (height <= limits[:, 0:1])
    row, first = np.arange(len(area)), fits.argmax(axis=1)
    return width[row, first], height[row, first], fits.any(axis=1)


def random_boxes(sizes: np.ndarray, u: np.ndarray, scale: Sequence[float], ratio: Sequence[float]) -> np.ndarray:
    """Return float64 [B, 4]: crops with a uniform share of the area in `scale` and a log-uniform aspect ratio in `ratio`.

    The method is that of Szegedy et al. 2015, "Going deeper with convolutions". If no candidate fits, the crop is the largest centred
    one of an allowed aspect ratio. `sizes` is int [B, 2] (height, width), `u` float64 [B, CROP_DRAWS] uniform draws."""
    full = sizes.astype(np.float64)
    area = full.prod(axis=1)[:, None] * (scale[0] + (scale[1] - scale[0]) * u[:, :TRIES])
    width, height, found = rectangles(area, u[:, TRIES : 2 * TRIES], ratio, full)
    left, top = u[:, -2] * (full[:, 1] - width), u[:, -1] * (full[:, 0] - height)
    boxes = np.stack([left, top, left + width, top + height], axis=1)
    boxes = np.where(found[:, None], boxes, centred_boxes(sizes, ratio))
    return np.clip(boxes, 0.0, full[:, [1, 0, 1, 0]])  # by rounding, left + width may exceed the side


def centred_boxes(sizes: np.ndarray, ratio: Sequence[float] = (1.0, 1.0)) -> np.ndarray:
    """Return float64 [B, 4]: the largest centred crops whose aspect ratio (width / height) is in `ratio`; by default central squares."""
    height, width = sizes[:, 0].astype(np.float64), sizes[:, 1].astype(np.float64)
    w, h = np.minimum(width, height * ratio[1]), np.minimum(height, width / ratio[0])
    left, top = (width - w) / 2, (height - h) / 2
    return np.stack([left, top, left + w, top + h], axis=1)


def resample(image: np.ndarray, box: Sequence[float], size: int) -> Image.Image:
    """Return the part of uint8 [H, W, 3] `image` inside `box`, resized to a square RGB picture of `size` pixels."""
    left, top, right, bottom = box
    x0, y0, x1, y1 = int(left), int(top), int(np.ceil(right)), int(np.ceil(bottom))
    picture = Image.fromarray(image[y0:y1, x0:x1])  # copies only the box: photographs may be large
    inner = (left - x0, top - y0, right - x0, bottom - y0)
    if picture.size == (size, size) and inner == (0.0, 0.0, size, size):
        return picture
    return picture.resize((size, size), Image.Resampling.BILINEAR, box=inner, reducing_gap=REDUCING_GAP)


def flip(picture: Image.Image, horizontal: bool, vertical: bool) -> Image.Image:
    """Return the picture mirrored left-right, top-bottom, or both."""
    if horizontal:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if vertical:
        picture = picture.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    return picture


def erase_boxes(u: np.ndarray, size: int, probability: float) -> np.ndarray:
    """Return int64 [B, 4]: (top, left, bottom, right) of the rectangles to erase in squares of `size` pixels; all 0 for none.

    Random erasing of Zhong et al. 2017. `u` are uniform draws, float64 [B, ERASE_DRAWS]."""
    area = size * size * (ERASE_AREA[0] + (ERASE_AREA[1] - ERASE_AREA[0]) * u[:, :TRIES])
    width, height, found = rectangles(area, u[:, TRIES : 2 * TRIES], ERASE_RATIO, np.full((len(u), 2), float(size)))
    sides = np.maximum(1, np.rint(np.stack([height, width], axis=1))).astype(np.int64)
    corner = np.floor(u[:, -2:] * (size - sides + 1)).astype(np.int64)
    boxes = np.concatenate([corner, corner + sides], axis=1)
    return np.where(((u[:, -3] < probability) & found)[:, None], boxes, 0)


def erase(images: np.ndarray, boxes: np.ndarray) -> None:
    """Fill the boxes of uint8 [B, 3, S, S] `images` with FILL, in place."""
    for i in np.flatnonzero(boxes[:, 2] > boxes[:, 0]):
        top, left, bottom, right = boxes[i]
        images[i, :, top:bottom, left:right] = FILL[:, None, None]
