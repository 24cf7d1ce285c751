"""Read photographs that are arguments of `predict`: paths, bytes of an image file, arrays of pixels, or PIL images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from linnaeus.errors import ConfigError, shorten
from linnaeus.workloads.taxonomy.images.decoding import decode, decoded, limited_pixels
from linnaeus.workloads.taxonomy.images.image_files import read_file

Photograph = str | os.PathLike[str] | bytes | bytearray | memoryview | np.ndarray | Any  # or a PIL picture


def is_one(photographs: Any) -> bool:
    """Return True for one photograph, False for a list or another sequence of photographs."""
    return not isinstance(photographs, Sequence) or isinstance(photographs, str | bytes | bytearray | memoryview)


def read_photograph(photograph: Photograph, short_side: int, max_pixels: int) -> np.ndarray:
    """Return the pixels of a photograph, uint8 [H, W, 3] RGB. Scale it down if its shorter side is longer than `short_side` pixels.

    Raise `NotAnImage` for bytes that cannot be decoded or have more than `max_pixels` pixels, `OSError` for a file that cannot be read, and
    `ConfigError` for an object of another type."""
    if isinstance(photograph, bytes | bytearray | memoryview):
        return decode(bytes(photograph), short_side, max_pixels)
    if isinstance(photograph, str | os.PathLike):
        return decode(read_file(os.fspath(photograph)), short_side, max_pixels)
    if isinstance(photograph, np.ndarray):
        if photograph.dtype != np.uint8 or photograph.ndim != 3 or photograph.shape[2] != 3 or 0 in photograph.shape:
            raise ConfigError(f"photograph: the array is {photograph.dtype} {photograph.shape}; it must be uint8 (height, width, 3), RGB")
        return limited_pixels(photograph, short_side)
    if hasattr(photograph, "getexif"):
        return decoded(photograph, short_side)
    raise ConfigError(f"photograph: {shorten(repr(photograph))} is not a path, bytes, an array of pixels or a PIL picture")


def name_of(photograph: Photograph) -> str | None:
    """Return the path of a photograph; None if the photograph is not given as a path."""
    return os.fspath(photograph) if isinstance(photograph, str | os.PathLike) else None
