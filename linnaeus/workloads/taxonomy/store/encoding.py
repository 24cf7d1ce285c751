"""Encode a photograph for a store: JPEG at a limited short side, raw pixels, or the original file."""

import io
from dataclasses import dataclass

import numpy as np

from linnaeus.workloads.taxonomy.manifest.decoding import decode, fits

ENCODINGS = ("jpeg", "raw", "original")


@dataclass(frozen=True)
class Encoding:
    """How photographs are stored. `short_side`, in pixels, and `quality`, of JPEG, have no effect on originals."""

    name: str
    short_side: int
    quality: int
    max_pixels: int  # photographs with more are refused

    def encode(self, data: bytes) -> tuple[bytes, tuple[int, int]]:
        """Return the bytes to store and the (height, width) of the photograph. Raise NotAnImage if it cannot be decoded.

        A JPEG that is upright, in colour and not larger than `short_side` is stored as it is: encoding it again would only lose detail."""
        pixels = decode(data, self.short_side if self.name != "original" else 1 << 30, self.max_pixels)
        shape = pixels.shape[0], pixels.shape[1]
        if self.name == "raw":
            return pixels.tobytes(), shape
        if self.name == "original" or fits(data, self.short_side):
            return data, shape
        return _jpeg(pixels, self.quality), shape


def _jpeg(pixels: np.ndarray, quality: int) -> bytes:
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "JPEG", quality=quality)
    return content.getvalue()
