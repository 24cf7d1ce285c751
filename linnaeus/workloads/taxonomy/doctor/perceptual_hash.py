"""Compute the perceptual hash of a photograph: 64 bits that change little when it is resized, compressed or made a little brighter.

The 8 x 8 coefficients of the lowest frequencies of the discrete cosine transform of a grey picture of 32 x 32 pixels are compared with
their median. This is the hash `phash` of the library imagehash, except for bits whose coefficients nearly equal the median. Pictures are
resampled by matrices, in a tenth of the time of Pillow, which computes the weights of the filter for every picture.
"""

import math
from functools import lru_cache

import numpy as np

SIDE = 32  # of the grey picture
_LOW = 8
_LOBES = 3
_PLACES = (np.arange(SIDE) + 0.5) * math.pi / SIDE
_COSINES = 2 * np.cos(np.arange(_LOW)[:, None] * _PLACES)  # [8, 32], DCT-II without normalisation


def perceptual_hashes(grey: np.ndarray) -> np.ndarray:
    """Return the hash of each grey picture, uint64 [N]. `grey`: [N, 32, 32]. The first coefficient is the highest bit."""
    low = (_COSINES @ grey.astype(np.float64) @ _COSINES.T).reshape(len(grey), _LOW * _LOW)
    bits = low > np.median(low, axis=1, keepdims=True)
    return np.packbits(bits, axis=1).view(">u8").reshape(len(grey)).astype(np.uint64)


def resampled(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return a picture, float32 [H, W], resized to `height` x `width` pixels by the Lanczos filter of three lobes, antialiased as in
    Pillow."""
    return _weights(picture.shape[0], height) @ picture @ _weights(picture.shape[1], width).T


@lru_cache(1024)
def _weights(size: int, new: int) -> np.ndarray:
    """Return the Lanczos weights that resample a row of `size` values to `new` values, float32 [new, size]."""
    scale = size / new
    distance = (np.arange(size) + 0.5 - (np.arange(new)[:, None] + 0.5) * scale) / max(scale, 1.0)
    weights = np.where(np.abs(distance) < _LOBES, np.sinc(distance) * np.sinc(distance / _LOBES), 0.0)
    return (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
