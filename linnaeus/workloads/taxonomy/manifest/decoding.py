"""Decode the bytes of an image file to RGB pixels.

The content of a file decides on its format, not its name. Only `FORMATS` are decoded: Pillow opens others with programs of their own
(PostScript with Ghostscript) or with decoders that are rarely checked. Of an animation, the first picture is decoded.

The result is upright, with transparency on white and 16-bit values scaled to 8 bits. Its short side is at most `short_side`; a much
larger JPEG is decoded at a half, a quarter or an eighth of its size (a quarter of the time or less). Colour profiles are not applied.
The pixels are a function of the bytes and the limits alone.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import numpy as np

from linnaeus.errors import one_line
from linnaeus.workloads.taxonomy.manifest.integrity import NotAnImage, check_container, check_last_block

if TYPE_CHECKING:
    from PIL.Image import Image, Transpose

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
_ORIENTATION = 0x0112  # EXIF tag
_DEPTHS = (8, 10, 12, 14, 16)  # bits per value that cameras and scanners store in 16 bits
_DECODER_ERRORS: tuple[type[Exception], ...] = (OSError, EOFError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError)
_DECODER_ERRORS += (AttributeError, RuntimeError, struct.error, zlib.error)


def decode(data: bytes, short_side: int, max_pixels: int) -> np.ndarray:
    """Return uint8 [H, W, 3] RGB of the bytes of an image file.

    Raises NotAnImage for bytes that are not a complete image, and, before decoding, for an image of more than `max_pixels` pixels."""
    from PIL.Image import Resampling

    with _decoding_errors():
        image = _open(data, max_pixels)
        check_container(image, data)
        size = limited_size(*image.size, short_side)
        _load(image, short_side)
        if image.format in ("JPEG", "MPO"):
            check_last_block(image, data, lambda padded: _load(_open(padded, max_pixels), short_side))
        rotation = _upright_rotation(image)
        rgb = _to_rgb(image)
        if rgb.size != size:
            rgb = rgb.resize(size, Resampling.BILINEAR, reducing_gap=2.0)
        if rotation is not None:
            rgb = rgb.transpose(rotation)
        return np.array(rgb)  # a copy: torch does not accept read-only memory


def stored_size(data: IO[bytes], short_side: int, max_pixels: int) -> int:
    """Return the size in bytes of what `decode` returns for a file, read from its header alone; 0 if the header cannot be read."""
    try:
        with _decoding_errors():
            width, height = limited_size(*_open(data, max_pixels).size, short_side)
            return 3 * width * height
    except NotAnImage:
        return 0


def fits(data: bytes, short_side: int) -> bool:
    """Return True for a complete JPEG in RGB, upright, whose short side is at most `short_side`."""
    image = _open(data, 1 << 62)
    return image.format == "JPEG" and image.mode == "RGB" and _upright_rotation(image) is None and min(image.size) <= short_side


def limited_pixels(pixels: np.ndarray, short_side: int) -> np.ndarray:
    """Return a copy of uint8 [H, W, 3], scaled down as `decode` does if its short side is above `short_side`."""
    from PIL import Image

    size = limited_size(pixels.shape[1], pixels.shape[0], short_side)
    if size == (pixels.shape[1], pixels.shape[0]):
        return np.array(pixels)
    return np.array(Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR, reducing_gap=2.0))


def limited_size(width: int, height: int, short_side: int) -> tuple[int, int]:
    """Return the size (width, height), scaled down with the same aspect ratio if its short side is above `short_side`."""
    short = min(width, height)
    if short <= short_side:
        return width, height
    return tuple(max(1, round(side * short_side / short)) for side in (width, height))  # type: ignore[return-value]


def _load(image: Image, short_side: int) -> Image:
    """Decode the pixels of an opened image, and return it. A JPEG is decoded at a fraction whose short side is at least `short_side`.

    EXIF must be read later: an error in the pixels must not count as damaged EXIF, and Pillow turns a TIFF itself when it loads it."""
    if image.format in ("JPEG", "MPO"):
        image.draft(None, (short_side, short_side))
    image.load()
    return image


@contextmanager
def _decoding_errors() -> Iterator[None]:
    """Raise NotAnImage in place of the errors that Pillow's decoders raise on damaged bytes.

    `decode` reads bytes in memory, so an OSError in it never comes from a disk."""
    try:
        yield
    except _DECODER_ERRORS as error:
        unknown = type(error).__name__ == "UnidentifiedImageError"
        raise NotAnImage(f"not an image of a format that is read ({', '.join(FORMATS)})" if unknown else one_line(error)) from error


def _open(data: bytes | IO[bytes], max_pixels: int) -> Image:
    """Open an image without decoding its pixels. Raises NotAnImage when it is empty or too large."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # replaced by the configured limit below
    if not data:
        raise NotAnImage("empty file")
    image = Image.open(io.BytesIO(data) if isinstance(data, bytes) else data, formats=FORMATS)
    width, height = image.size
    if width * height > max_pixels:
        raise NotAnImage(f"{width} x {height} pixels, more than data.max_image_pixels={max_pixels}")
    if width < 1 or height < 1:
        raise NotAnImage("no pixels")
    return image


def _upright_rotation(image: Image) -> Transpose | None:
    """Return the operation that makes the photograph upright according to its EXIF tag; None if none is needed or EXIF is damaged."""
    from PIL.Image import Transpose

    try:
        tag = image.getexif().get(_ORIENTATION, 1)
    except _DECODER_ERRORS:
        return None
    t = Transpose
    operations = (t.FLIP_LEFT_RIGHT, t.ROTATE_180, t.FLIP_TOP_BOTTOM, t.TRANSPOSE, t.ROTATE_270, t.TRANSVERSE, t.ROTATE_90)
    return operations[tag - 2] if isinstance(tag, int) and 2 <= tag <= 8 else None


def _to_rgb(image: Image) -> Image:
    """Return the first frame in RGB: transparency on white, values of more than 8 bits scaled."""
    from PIL import Image

    if image.mode.startswith("I") or image.mode == "F":
        return _scaled(image)  # 16-bit grey with a transparent level: the transparency is ignored
    if image.mode not in ("RGBA", "LA", "PA", "RGBa", "La") and "transparency" not in image.info:
        return image.convert("RGB")
    if image.mode in ("RGBa", "La"):
        image = image.convert("RGBA" if image.mode == "RGBa" else "LA")
    layer = image.convert("RGBA")
    white = Image.new("RGB", layer.size, (255, 255, 255))
    white.paste(layer, mask=layer.getchannel("A"))
    return white


def _scaled(image: Image) -> Image:
    """Return grey values of more than 8 bits as RGB.

    Full scale is that of the smallest common bit depth that holds the brightest pixel, so that 12 bits stored in 16 do not come out
    black. Values beyond 16 bits, and fractions beyond 255, are scaled by the brightest pixel."""
    from PIL import Image

    values = np.nan_to_num(np.asarray(image, dtype=np.float64), posinf=0.0, neginf=0.0)
    brightest = float(values.max(initial=0.0))
    if image.mode == "F":
        full = next((scale for scale in (1.0, 255.0) if brightest <= scale), brightest)
    else:
        full = next((float((1 << depth) - 1) for depth in _DEPTHS if brightest < 1 << depth), brightest)
    grey = np.rint(np.clip(values / full, 0.0, 1.0) * 255.0).astype(np.uint8)
    return Image.fromarray(grey).convert("RGB")
