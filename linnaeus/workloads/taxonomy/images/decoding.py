"""Decode the bytes of an image file to RGB pixels.

The format is recognised by the content of a file, not by its name. Only `FORMATS` are decoded: for other formats Pillow starts external
programs (Ghostscript for PostScript) or uses decoders that are rarely checked. Of an animation, the first image is decoded.

The result is upright, with transparency on white and 16-bit values scaled to 8 bits. Its short side is at most `short_side`; a much larger
JPEG is decoded at a half, a quarter or an eighth of its size (a quarter of the time or less). Colour profiles are not applied. The pixels
depend only on the bytes and the limits: simplejpeg (`jpeg.py`) and Pillow decode a JPEG to the same pixels.
"""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import numpy as np

from linnaeus.errors import one_line
from linnaeus.workloads.taxonomy.images.integrity import NotAnImage, TooManyPixels, check_container, check_last_block, jpeg_end
from linnaeus.workloads.taxonomy.images.jpeg import decode_jpeg, plain_size
from linnaeus.workloads.taxonomy.images.resizing import resize

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
_ORIENTATION = 0x0112  # EXIF tag
_UPSIDE_DOWN, _MIRRORED = (3, 4, 7, 8), (2, 3, 6, 7)  # values of the tag; of 5 to 8 after rows and columns are exchanged
_DEPTHS = (8, 10, 12, 14, 16)  # bits per value that cameras and scanners store in 16 bits
_DECODER_ERRORS: tuple[type[Exception], ...] = (OSError, EOFError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError)
_DECODER_ERRORS += (AttributeError, RuntimeError, struct.error, zlib.error)
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")  # of damaged metadata, which are not read further


def decode(data: bytes, short_side: int, max_pixels: int) -> np.ndarray:
    """Decode the bytes of an image file to pixels, uint8 [H, W, 3] RGB, scaled down if the shorter side is above `short_side`.

    Raise `NotAnImage` for bytes that are not a complete image, and, before decoding, for an image of more than `max_pixels` pixels."""
    return decode_sized(data, short_side, max_pixels)[0]


def decode_sized(data: bytes, short_side: int, max_pixels: int) -> tuple[np.ndarray, tuple[int, int]]:
    """Return the pixels as `decode` does, and (width, height) of the image in the file. Raise the errors of `decode`."""
    with _decoding_errors():
        plain = _decode_plain(data, short_side, max_pixels)
        if plain is not None:
            return plain
        image = _open(data, max_pixels)
        stored = image.size  # `draft` changes it
        check_container(image, data)
        size = limited_size(*stored, short_side)
        pixels = decode_jpeg(data, stored, short_side) if image.format in ("JPEG", "MPO") and image.mode == "RGB" else None
        if pixels is None:
            _load(image, short_side)
            if image.format in ("JPEG", "MPO"):
                check_last_block(image, data, lambda padded: _load(_open(padded, max_pixels), short_side))
            pixels = np.asarray(_to_rgb(image))
        return _upright(_resized(pixels, size), image), stored


def _decode_plain(data: bytes, short_side: int, max_pixels: int) -> tuple[np.ndarray, tuple[int, int]] | None:
    """Return the result of `decode_sized` for a JPEG that can be decoded without Pillow.

    Return None for other files, for damaged JPEGs, and for images with more than `max_pixels` pixels."""
    size = plain_size(data)
    if size is None or size[0] * size[1] > max_pixels:
        return None
    try:
        jpeg_end(data)
    except NotAnImage:
        return None
    pixels = decode_jpeg(data, size, short_side)
    return None if pixels is None else (_resized(pixels, limited_size(*size, short_side)), size)


def decoded(image: Image, short_side: int) -> np.ndarray:
    """Return the pixels of a PIL image, uint8 [H, W, 3], equal to the result of `decode` for the file of the image. Raise `NotAnImage` if
    the image is damaged."""
    with _decoding_errors():
        size = limited_size(*image.size, short_side)
        return _upright(_resized(np.asarray(_to_rgb(image)), size), image)


def stored_size(data: IO[bytes], short_side: int, max_pixels: int) -> int:
    """Return the number of bytes of the pixels that `decode` returns for a file, from its header alone; 0 if the header cannot be read."""
    try:
        with _decoding_errors():
            width, height = limited_size(*_open(data, max_pixels).size, short_side)
            return 3 * width * height
    except NotAnImage:
        return 0


def fits(data: bytes, short_side: int) -> bool:
    """Return True for a complete JPEG in RGB, upright, whose short side is at most `short_side`."""
    image = _open(data, 1 << 62)
    return image.format == "JPEG" and image.mode == "RGB" and _orientation(image) == 1 and min(image.size) <= short_side


def limited_pixels(pixels: np.ndarray, short_side: int) -> np.ndarray:
    """Return a copy of `pixels`, uint8 [H, W, 3], scaled down as by `decode` if the short side is above `short_side`."""
    return np.array(_resized(pixels, limited_size(pixels.shape[1], pixels.shape[0], short_side)))


def limited_size(width: int, height: int, short_side: int) -> tuple[int, int]:
    """Return (width, height), scaled down with the same aspect ratio if the shorter side is above `short_side`."""
    short = min(width, height)
    if short <= short_side:
        return width, height
    return tuple(max(1, round(side * short_side / short)) for side in (width, height))  # type: ignore[return-value]


def _load(image: Image, short_side: int) -> Image:
    """Decode the pixels of an opened image, and return the image. A large JPEG is decoded at 1/2, 1/4 or 1/8 of its size, not below
    `short_side`.

    Call this before EXIF is read: an error in the pixels must not count as damaged EXIF, and Pillow rotates a TIFF during decoding."""
    if image.format in ("JPEG", "MPO"):
        image.draft(None, (short_side, short_side))
    image.load()
    return image


@contextmanager
def _decoding_errors() -> Iterator[None]:
    """Convert the errors that Pillow's decoders raise for damaged bytes to `NotAnImage`.

    The bytes are in memory, so an `OSError` never comes from a disk."""
    try:
        yield
    except _DECODER_ERRORS as error:
        unknown = type(error).__name__ == "UnidentifiedImageError"
        raise NotAnImage(f"not an image of a format that is read ({', '.join(FORMATS)})" if unknown else one_line(error)) from error


def _open(data: bytes | IO[bytes], max_pixels: int) -> Image:
    """Open an image without decoding its pixels. Raise `NotAnImage` if the data are empty or the image has more than `max_pixels`
    pixels."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # replaced by the configured limit below
    if not data:
        raise NotAnImage("empty file")
    image = Image.open(io.BytesIO(data) if isinstance(data, bytes) else data, formats=FORMATS)
    width, height = image.size
    if width * height > max_pixels:
        raise TooManyPixels(width, height, max_pixels)
    if width < 1 or height < 1:
        raise NotAnImage("no pixels")
    return image


def _resized(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return `pixels`, uint8 [H, W, 3], resized to `size`, (width, height)."""
    width, height = size
    if pixels.shape[:2] == (height, width):
        return pixels
    out = np.empty((height, width, 3), dtype=np.uint8)
    resize(pixels, out)
    return out


def _orientation(image: Image) -> int:
    """Return the EXIF orientation of an image, 1 to 8; 1 (upright) if the image has no orientation or its EXIF data are damaged."""
    try:
        tag = image.getexif().get(_ORIENTATION, 1)
    except _DECODER_ERRORS:
        return 1
    return tag if isinstance(tag, int) and 2 <= tag <= 8 else 1


def _upright(pixels: np.ndarray, image: Image) -> np.ndarray:
    """Return `pixels`, [H, W, 3], of `image`, turned upright according to its EXIF orientation, as a contiguous array that can be
    written: torch does not accept other memory."""
    tag = _orientation(image)
    if tag == 1:
        return np.require(pixels, requirements=["C", "W"])
    if tag >= 5:
        pixels = pixels.transpose(1, 0, 2)
    turned = pixels[:: -1 if tag in _UPSIDE_DOWN else 1, :: -1 if tag in _MIRRORED else 1]
    return np.array(turned, order="C")  # `np.require` does not copy a single pixel, whose strides may be negative


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
    """Convert a grey image (Pillow's modes I, I;16 and F) to RGB with 8 bits per channel.

    White is the largest value of the smallest bit depth in `_DEPTHS` that contains the brightest pixel, so that 12-bit values in a 16-bit
    file do not look black. In a float image (mode F), white is 1 if no pixel exceeds 1, otherwise 255. If the brightest pixel is above all
    these values, the brightest pixel is white. NaN, infinite and negative values are black."""
    from PIL import Image

    values = np.nan_to_num(np.asarray(image, dtype=np.float64), posinf=0.0, neginf=0.0)
    brightest = float(values.max(initial=0.0))
    if image.mode == "F":
        full = next((scale for scale in (1.0, 255.0) if brightest <= scale), brightest)
    else:
        full = next((float((1 << depth) - 1) for depth in _DEPTHS if brightest < 1 << depth), brightest)
    grey = np.rint(np.clip(values / full, 0.0, 1.0) * 255.0).astype(np.uint8)
    return Image.fromarray(grey).convert("RGB")
