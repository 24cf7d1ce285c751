"""Brightness, contrast, saturation and hue as one affine map of colour per sample.

All four are linear in (R, G, B) but for the image's mean grey, so they are folded into a 3x3 matrix and an offset, and clipped once
at the end. The arithmetic is elementwise on purpose: a matrix product may round differently with the number of samples in the batch.
"""

from __future__ import annotations

import numpy as np

GREY = np.array([0.299, 0.587, 0.114])  # luma of ITU-R BT.601
_YIQ = np.array([GREY, [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])  # luma, and the plane in which hue is an angle
_RGB = np.linalg.inv(_YIQ)
CHUNK_PIXELS = 1 << 15  # float32 planes of one chunk stay in the second-level cache


def colour_maps(u: np.ndarray, brightness: float, contrast: float, saturation: float, hue: float) -> tuple[np.ndarray, np.ndarray]:
    """float64 matrices [B, 3, 3] and, float64 [B], the multiple of the image's own mean grey that is added to every channel.

    `u` float64 [B, 4]: factors are uniform in [max(0, 1 - strength), 1 + strength], hue turns in [-hue, hue] turns.
    With x' = b x, x'' = c x' + (1 - c) mean_grey(x'), then saturation about grey and a rotation of (I, Q): M = H S b c and
    offset (1 - c) b mean_grey(x), for S and H leave greys where they are."""
    strengths = np.array([brightness, contrast, saturation])
    low = np.maximum(0.0, 1.0 - strengths)
    b, c, s = (low + (1.0 + strengths - low) * u[:, :3]).T
    angle = 2.0 * np.pi * hue * (2.0 * u[:, 3] - 1.0)
    turn = np.zeros((len(u), 3, 3))
    turn[:, 0, 0] = 1.0
    turn[:, 1, 1] = turn[:, 2, 2] = np.cos(angle)
    turn[:, 1, 2], turn[:, 2, 1] = -np.sin(angle), np.sin(angle)
    saturate = s[:, None, None] * np.eye(3) + (1.0 - s)[:, None, None] * GREY[None, None, :]
    matrices = (_RGB @ turn @ _YIQ @ saturate) * (b * c)[:, None, None]
    return matrices, (1.0 - c) * b


def apply_colour(images: np.ndarray, matrices: np.ndarray, grey_share: np.ndarray) -> None:
    """Map uint8 [B, 3, H, W] `images` in place."""
    count, _, height, width = images.shape
    step = max(1, CHUNK_PIXELS // (height * width))
    for start in range(0, count, step):
        part = slice(start, start + step)
        _apply_chunk(images[part].reshape(-1, 3, height * width), matrices[part], grey_share[part])


def _apply_chunk(images: np.ndarray, matrices: np.ndarray, grey_share: np.ndarray) -> None:
    mean_grey = images.sum(axis=2, dtype=np.int64) @ GREY / images.shape[2]  # integer sums: exact in any order
    offset = (grey_share * mean_grey + 0.5).astype(np.float32)[:, None]  # half: truncation below then rounds
    m = matrices.astype(np.float32)[..., None]
    red, green, blue = (images[:, c].astype(np.float32) for c in range(3))
    out, term = np.empty_like(red), np.empty_like(red)
    for c in range(3):
        np.multiply(red, m[:, c, 0], out=out)
        out += np.multiply(green, m[:, c, 1], out=term)
        out += np.multiply(blue, m[:, c, 2], out=term)
        out += offset
        images[:, c] = np.clip(out, 0.0, 255.5, out=out)
