"""From a file's bytes to RGB pixels, whatever kind of image it is.

Photographs come out upright, with transparency on white, 16-bit values scaled to 8, and no larger than needed: the short side is at most
`short_side`, and a JPEG far larger than that is decoded at a half, a quarter or an eighth (a quarter of the time or less). Colour profiles
are not applied. Pixels do not depend on anything but the bytes and the limits.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image, Transpose

_ORIENTATION = 0x0112  # EXIF tag
_DEPTHS = (8, 10, 12, 14, 16)  # bits of cameras and scanners that store into 16
_DAMAGED: tuple[type[Exception], ...] = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    EOFError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RuntimeError,
)
_DAMAGED += (struct.error, zlib.error)


class NotAnImage(Exception):
    """Bytes that cannot be decoded; the text says why."""


def decode(data: bytes, short_side: int, max_pixels: int) -> np.ndarray:
    """uint8 [H, W, 3] RGB of an image file's bytes. Raises NotAnImage for bytes that are no complete image, or one of more than
    `max_pixels` pixels (before its pixels are decoded)."""
    from PIL.Image import Resampling

    with _decoding_errors():
        image = _open(data, max_pixels)
        upright = _orientation(image)
        size = limited_size(*image.size, short_side)
        if image.format in ("JPEG", "MPO"):
            image.draft(None, (short_side, short_side))
        rgb = _to_rgb(image)
        if rgb.size != size:
            rgb = rgb.resize(size, Resampling.BILINEAR, reducing_gap=2.0)
        if upright is not None:
            rgb = rgb.transpose(upright)
        return np.array(rgb)  # a copy: torch takes no read-only memory


def stored_size(data: IO[bytes], short_side: int, max_pixels: int) -> int:
    """Bytes that `decode` would return for a file, from its header alone; 0 where there is no readable header."""
    try:
        with _decoding_errors():
            width, height = limited_size(*_open(data, max_pixels).size, short_side)
            return 3 * width * height
    except NotAnImage:
        return 0


def limited_size(width: int, height: int, short_side: int) -> tuple[int, int]:
    """The size with the same shape whose short side is at most `short_side`."""
    short = min(width, height)
    if short <= short_side:
        return width, height
    return tuple(max(1, round(side * short_side / short)) for side in (width, height))  # type: ignore[return-value]


@contextmanager
def _decoding_errors() -> Iterator[None]:
    """Turns what Pillow's decoders raise on damaged bytes into NotAnImage. The bytes are in memory: no OSError comes from a disk."""
    try:
        yield
    except _DAMAGED as error:
        raise NotAnImage(_reason(error)) from error


def _reason(error: BaseException) -> str:
    if type(error).__name__ == "UnidentifiedImageError":
        return "not an image that Pillow reads"
    return (str(error).splitlines() or [""])[0][:200] or type(error).__name__


def _open(data: bytes | IO[bytes], max_pixels: int) -> Image:
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # our own limit comes next and knows the configuration
    if not data:
        raise NotAnImage("empty file")
    image = Image.open(io.BytesIO(data) if isinstance(data, bytes) else data)
    width, height = image.size
    if width * height > max_pixels:
        raise NotAnImage(f"{width} x {height} pixels, more than data.max_image_pixels={max_pixels}")
    if width < 1 or height < 1:
        raise NotAnImage("no pixels")
    return image


def _orientation(image: Image) -> Transpose | None:
    """Pillow's name for the turn that makes the photograph upright. Damaged EXIF is no reason to refuse the pixels."""
    from PIL.Image import Transpose

    try:
        tag = image.getexif().get(_ORIENTATION, 1)
    except _DAMAGED:
        return None
    t = Transpose
    turns = (None, t.FLIP_LEFT_RIGHT, t.ROTATE_180, t.FLIP_TOP_BOTTOM, t.TRANSPOSE, t.ROTATE_270, t.TRANSVERSE, t.ROTATE_90)
    return turns[tag - 1] if isinstance(tag, int) and 1 <= tag <= 8 else None


def _to_rgb(image: Image) -> Image:
    """The first frame in RGB: transparency on white, wide values scaled."""
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        return _on_white(image)
    if image.mode.startswith("I") or image.mode == "F":
        return _scaled(image)
    return image.convert("RGB")


def _on_white(image: Image) -> Image:
    from PIL import Image

    if image.mode in ("RGBa", "La"):
        image = image.convert("RGBA" if image.mode == "RGBa" else "LA")
    if image.mode.startswith("I"):
        return _scaled(image)  # a transparent level of 16-bit grey: seen as the grey it is
    layer = image.convert("RGBA")
    white = Image.new("RGB", layer.size, (255, 255, 255))
    white.paste(layer, mask=layer.getchannel("A"))
    return white


def _scaled(image: Image) -> Image:
    """Grey of more than 8 bits in RGB: full scale is that of the smallest usual depth that holds the brightest pixel, so 12 bits
    stored in 16 do not come out black; values beyond 16 bits and fractions are scaled by the brightest."""
    from PIL import Image

    values = np.nan_to_num(np.asarray(image, dtype=np.float64), posinf=0.0, neginf=0.0)
    brightest = float(values.max(initial=0.0))
    if image.mode == "F":
        full = next((scale for scale in (1.0, 255.0) if brightest <= scale), brightest)
    else:
        full = next((float((1 << depth) - 1) for depth in _DEPTHS if brightest < 1 << depth), brightest)
    grey = np.rint(np.clip(values / full, 0.0, 1.0) * 255.0).astype(np.uint8)
    return Image.fromarray(grey).convert("RGB")
