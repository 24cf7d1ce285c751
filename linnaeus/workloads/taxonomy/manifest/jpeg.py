"""Decode JPEG in colour by simplejpeg: the same pixels as by Pillow, in two thirds of the time. Both use libjpeg-turbo.

simplejpeg is used where it is installed. `decode_jpeg` returns None for a file that it does not decode, or decodes with a warning. Then
Pillow and the checks of `integrity.py` decide if the file is damaged.
"""

import numpy as np

try:
    import simplejpeg
except (ImportError, ValueError):  # not installed; built for another numpy
    simplejpeg = None

REDUCTIONS = (8, 4, 2)  # of the sides; fast in libjpeg-turbo, and those of Pillow


def decoder_note() -> str | None:
    """Return a line on the decoder if simplejpeg cannot be used, otherwise None."""
    slower = "JPEG is decoded by Pillow, to the same pixels in half as much time again; install simplejpeg (pip install simplejpeg)"
    return slower if simplejpeg is None else None


def decode_jpeg(data: bytes, size: tuple[int, int], short_side: int) -> np.ndarray | None:
    """Return uint8 [H, W, 3] of a JPEG of (width, height) `size`; None if it cannot be decoded, or not without a warning.

    It is decoded at the smallest of a half, a quarter and an eighth of its size whose short side is at least `short_side`."""
    if simplejpeg is None:
        return None
    factor = next((factor for factor in REDUCTIONS if min(size) // short_side >= factor), 1)
    width, height = (-(-side // factor) for side in size)
    try:
        pixels = simplejpeg.decode_jpeg(data, "RGB", min_height=height, min_width=width, min_factor=factor, strict=True)
    except (ValueError, RuntimeError):
        return None
    return pixels if pixels.shape == (height, width, 3) else None
