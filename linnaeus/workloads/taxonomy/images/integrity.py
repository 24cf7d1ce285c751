"""Find damaged image files that Pillow would decode partly without raising an error.

- PNG: the checksums of all chunks are checked. Pillow checks only the chunks before the pixels.
- JPEG, also inside TIFF: all segments up to the end of the image must be there, and data for the last block. The decoder fills missing
  blocks with grey and reports it only as a warning, which Pillow discards.
- GIF, WebP, BMP and other TIFF: Pillow's decoders raise an error when data are missing. These formats, and the compressed data of JPEG,
  have no checksums: a changed value that still decodes cannot be found.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.TiffImagePlugin import TiffImageFile

# A JPEG marker that starts a segment or ends the image: not a stuffed byte, and not a restart marker inside compressed data.
_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
_END = 0xD9
_SEGMENTS = {*range(0xC0, 0xD0), *range(0xDA, 0xFF)}
_COMPRESSION, _STRIPS, _STRIP_BYTES, _TILES, _TILE_BYTES = 259, 273, 279, 324, 325  # TIFF tags
_JPEG_IN_TIFF = 7
_PADDING = bytes(range(1, 255)) * 4  # JPEG data of varied codes, without a marker
_GREY = {127, 128}  # values of missing blocks in a decoded JPEG


class NotAnImage(Exception):
    """Error for bytes that cannot be decoded as an image. Its text is the reason."""


class TooManyPixels(NotAnImage):
    """Error for an image with more pixels than are allowed (`most`)."""

    def __init__(self, width: int, height: int, most: int) -> None:
        super().__init__(width, height, most)
        self.width, self.height, self.most = width, height, most

    def __str__(self) -> str:
        return f"{self.width} x {self.height} pixels, more than data.max_image_pixels={self.most}"


def check_container(image: Image, data: bytes) -> None:
    """Raise `NotAnImage`, or an error of Pillow's decoders, if the file `data`, opened as `image`, is damaged or incomplete."""
    if image.format == "PNG":
        from PIL import Image as images

        images.open(io.BytesIO(data), formats=["PNG"]).verify()
    elif image.format in ("JPEG", "MPO"):
        jpeg_end(data)
    elif image.format == "TIFF":
        _check_jpeg_in_tiff(image, data)  # type: ignore[arg-type]


def jpeg_end(data: bytes) -> int:
    """Return the position of the end-of-image marker of a JPEG. Raise `NotAnImage` if this marker is missing or another marker is
    invalid."""
    position = 2
    while (found := _MARKER.search(data, position)) is not None:
        marker = data[found.end() - 1]
        if marker == _END:
            return found.start()
        if marker not in _SEGMENTS:
            raise NotAnImage(f"damaged JPEG: invalid marker 0x{marker:02X} at byte {found.start()}")
        position = found.end() + max(2, int.from_bytes(data[found.end() : found.end() + 2]))
    raise NotAnImage("truncated JPEG: the end of the image is missing")


def check_last_block(image: Image, data: bytes, decode: Callable[[bytes], Image]) -> None:
    """Raise `NotAnImage` if the data of a decoded JPEG end before its last block. `decode`: the function that decoded `data` to `image`.

    The decoder makes missing blocks grey. So if the last pixel is grey, the file is decoded again with other data inserted before its end.
    If any pixel changes, blocks were missing."""
    corner = image.getpixel((image.width - 1, image.height - 1))
    if not _GREY.issuperset(corner[:3] if isinstance(corner, tuple) else (corner,)):
        return
    end = jpeg_end(data)
    if decode(data[:end] + _PADDING + data[end:]).tobytes() != image.tobytes():
        raise NotAnImage("truncated JPEG: the data end before the last block")


def _check_jpeg_in_tiff(image: TiffImageFile, data: bytes) -> None:
    """Raise `NotAnImage` if a strip or tile of a TIFF is an incomplete JPEG."""
    tags = image.tag_v2
    if tags.get(_COMPRESSION) != _JPEG_IN_TIFF:
        return
    for start, size in zip(tags.get(_STRIPS, tags.get(_TILES, ())), tags.get(_STRIP_BYTES, tags.get(_TILE_BYTES, ())), strict=True):
        jpeg_end(data[start : start + size])
