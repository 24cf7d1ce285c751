"""Encode a photograph for a store: as a JPEG that may be scaled down, as raw pixels, or as the original file."""

import io
from dataclasses import dataclass

import numpy as np

from linnaeus.workloads.taxonomy.images.decoding import decode, fits
from linnaeus.workloads.taxonomy.images.integrity import NotAnImage

ENCODINGS = ("jpeg", "raw", "original")
LONGEST = 65_500  # pixels on a side of the JPEGs that libjpeg writes


@dataclass(frozen=True)
class Encoding:
    """Settings that determine how photographs are encoded."""

    name: str  # one of `ENCODINGS`
    short_side: int  # pixels; larger photographs are scaled down to it, except with "original"
    quality: int  # of JPEG, 1 to 95
    max_pixels: int  # photographs with more pixels are refused

    def encode(self, data: bytes) -> tuple[bytes, tuple[int, int]]:
        """Return the bytes to store for an image file, and the (height, width) of the stored photograph.

        An upright colour JPEG that is not larger than `short_side` is stored unchanged, since encoding it again would only lose detail.
        Raise `NotAnImage` if the file cannot be decoded, or if its picture is too long for a JPEG."""
        pixels = decode(data, self.short_side if self.name != "original" else 1 << 30, self.max_pixels)
        shape = pixels.shape[0], pixels.shape[1]
        if self.name == "raw":
            return pixels.tobytes(), shape
        if self.name == "original" or fits(data, self.short_side):
            return data, shape
        if max(shape) > LONGEST:
            raise NotAnImage(f"{shape[1]} x {shape[0]} pixels: a JPEG has at most {LONGEST:,} on a side; --images=raw stores it")
        return _jpeg(pixels, self.quality), shape


def _jpeg(pixels: np.ndarray, quality: int) -> bytes:
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "JPEG", quality=quality)
    return content.getvalue()
