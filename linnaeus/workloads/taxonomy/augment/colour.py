"""Change brightness, contrast, saturation and hue by one affine colour map per sample.

If the mean grey of the image is known, all four changes are affine in (R, G, B). So they are combined into a 3x3 matrix and an offset, and
values are clipped once at the end. The arithmetic is elementwise, because the rounding of a matrix product may depend on the batch size."""

import numpy as np

GREY = np.array([0.299, 0.587, 0.114])  # luma of ITU-R BT.601
_YIQ = np.array([GREY, [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])  # luma, and the chroma plane, in which hue is an angle
_RGB = np.linalg.inv(_YIQ)
CHUNK_PIXELS = 1 << 15  # the float32 planes of a chunk fit the second-level cache


def colour_maps(u: np.ndarray, brightness: float, contrast: float, saturation: float, hue: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the colour maps of a batch: matrices, float64 [B, 3, 3], and grey factors, float64 [B]. The grey factor times the mean grey of
    the image is the offset added to every channel.

    `u`: uniform draws, float64 [B, 4]. The other arguments are strengths. The factors b (brightness), c (contrast) and s (saturation) are
    uniform in [max(0, 1 - strength), 1 + strength]. The hue rotation is uniform in [-hue, hue] full turns. The changes are x' = b x, then
    x'' = c x' + (1 - c) mean_grey(x'), then S (saturation about grey) and H (rotation of (I, Q)). S and H do not change greys, so the
    matrix is H S b c and the offset is (1 - c) b mean_grey(x)."""
    strengths = np.array([brightness, contrast, saturation])
    low = np.maximum(0.0, 1.0 - strengths)
    b, c, s = (low + (1.0 + strengths - low) * u[:, :3]).T
    angle = 2.0 * np.pi * hue * (2.0 * u[:, 3] - 1.0)
    rotation = np.zeros((len(u), 3, 3))
    rotation[:, 0, 0] = 1.0
    rotation[:, 1, 1] = rotation[:, 2, 2] = np.cos(angle)
    rotation[:, 1, 2], rotation[:, 2, 1] = -np.sin(angle), np.sin(angle)
    saturate = s[:, None, None] * np.eye(3) + (1.0 - s)[:, None, None] * GREY[None, None, :]
    matrices = (_RGB @ rotation @ _YIQ @ saturate) * (b * c)[:, None, None]
    return matrices, (1.0 - c) * b


def apply_colour(images: np.ndarray, matrices: np.ndarray, grey_factors: np.ndarray) -> None:
    """Apply colour maps to `images`, uint8 [B, 3, H, W], in place. `matrices` and `grey_factors` are the results of `colour_maps`."""
    count, _, height, width = images.shape
    step = max(1, CHUNK_PIXELS // (height * width))
    for start in range(0, count, step):
        part = slice(start, start + step)
        _apply_chunk(images[part].reshape(-1, 3, height * width), matrices[part], grey_factors[part])


def _apply_chunk(images: np.ndarray, matrices: np.ndarray, grey_factors: np.ndarray) -> None:
    means = images.sum(axis=2, dtype=np.int64) / images.shape[2]  # integer sums: exact in any order
    mean_grey = GREY[0] * means[:, 0] + GREY[1] * means[:, 1] + GREY[2] * means[:, 2]
    offset = (grey_factors * mean_grey + 0.5).astype(np.float32)[:, None]  # 0.5: the truncation below then rounds
    m = matrices.astype(np.float32)[..., None]
    red, green, blue = (images[:, c].astype(np.float32) for c in range(3))
    out, term = np.empty_like(red), np.empty_like(red)
    for c in range(3):
        np.multiply(red, m[:, c, 0], out=out)
        out += np.multiply(green, m[:, c, 1], out=term)
        out += np.multiply(blue, m[:, c, 2], out=term)
        out += offset
        images[:, c] = np.clip(out, 0.0, 255.5, out=out)
