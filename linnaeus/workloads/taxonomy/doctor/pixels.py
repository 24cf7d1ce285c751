"""Measure photographs in one pass that reads each file once and decodes it at a small size.

The measures are those of cleanvision 0.3.7, whose thresholds are used (`photograph_checks.py`), with two differences. First, cleanvision
decodes the whole picture; here the short side is `SIDE`, so a JPEG is decoded at a fraction of its size, faster than for training. Second,
cleanvision measures the blur including the border of the picture, where its filter copies the pixels; here the border is left out.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from linnaeus.reporting.terminal.preparation_progress import PreparationProgress
from linnaeus.workloads.taxonomy.arrays.text_arrays import strings
from linnaeus.workloads.taxonomy.doctor.perceptual_hash import SIDE as HASH_SIDE
from linnaeus.workloads.taxonomy.doctor.perceptual_hash import perceptual_hashes, resampled
from linnaeus.workloads.taxonomy.images.contents import content_hash
from linnaeus.workloads.taxonomy.images.image_files import ImageFiles
from linnaeus.workloads.taxonomy.images.integrity import NotAnImage
from linnaeus.workloads.taxonomy.images.process_pool import each_in_processes

SIDE = 64  # short side of the decoded picture in pixels; for the measure of blur it is resized to at most this long side
THUMBNAIL = 8  # side of a thumbnail in pixels
BLOCK = 256  # photographs that a process measures at once
FEW = 2_000  # up to this number of photographs one process is faster, because each process imports torch
_SHARE = np.array([0.241, 0.691, 0.068], dtype=np.float32) / 255**2  # weights of red, green and blue in the square of the brightness
_GREY = 2  # largest difference of two channels in a picture without colour, since JPEG rounds them
_BLUR = 0.01  # factor of the two standard deviations in `sharpness`
_PLAIN = 0.18  # a smaller term of the grey levels in `sharpness` counts as 0


@dataclass(frozen=True)
class Pixels:
    """Measures of N photographs: hashes, size, brightness, entropy, sharpness, colour. All numbers are 0 for a photograph that cannot be
    read."""

    reasons: np.ndarray  # strings [N]: why a photograph cannot be read; "" if it can
    content: np.ndarray  # uint64 [N], a hash of the bytes
    looks: np.ndarray  # uint64 [N], the perceptual hash
    thumbnail: np.ndarray  # uint8 [N, 8, 8], grey
    width: np.ndarray  # int32 [N], pixels in the file
    height: np.ndarray  # int32 [N]
    brightest: np.ndarray  # float32 [N], the 99th percentile of brightness, 0 to 1
    darkest: np.ndarray  # float32 [N], the 5th percentile
    entropy: np.ndarray  # float32 [N], bits, of the values of the three channels
    sharpness: np.ndarray  # float32 [N], 0 to 1, of the Laplacian and of the grey levels
    grey: np.ndarray  # bool [N]: the picture does not have colours

    def of_rows(self, number: np.ndarray) -> Pixels:
        """Return the measures of N rows. Row i gets the measures of photograph `number[i]`, or zeros if `number[i]` is -1. `number`: int64
        [N]."""
        known = number >= 0
        found = {}
        for field in fields(self):
            values = getattr(self, field.name)
            found[field.name] = np.zeros((len(number), *values.shape[1:]), dtype=values.dtype)
            found[field.name][known] = values[number[known]]
        return Pixels(**found)


def measure_rows(files: ImageFiles, sizes: np.ndarray, max_pixels: int, processes: int) -> Pixels:
    """Return the measures of the photographs of N rows, each photograph read once even if several rows have it.

    `sizes`: int64 [N], bytes of the files; the measures of a row are 0 where its size is 0 or less."""
    rows = np.flatnonzero(sizes > 0)
    number = np.full(len(sizes), -1, dtype=np.int64)
    if not len(rows):
        return Measurement(files, max_pixels).measure(rows).of_rows(number)
    _, first, own = np.unique(strings(files.names[rows]), return_index=True, return_inverse=True)
    order = np.argsort(first)  # the order of the rows, in which containers are fastest
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    number[rows] = rank[own]
    return measure(files, rows[first[order]], max_pixels, processes).of_rows(number)


def measure(files: ImageFiles, rows: np.ndarray, max_pixels: int, processes: int) -> Pixels:
    """Return the measures of the photographs of `rows`, int64 [M], and show the progress. The photographs are divided among `processes`
    processes."""
    blocks = [rows[i : i + BLOCK] for i in range(0, len(rows), BLOCK)]
    found: dict[int, Pixels] = {}
    task = Measurement(files, max_pixels)
    progress = PreparationProgress("measuring photographs", len(blocks), f"{len(rows):,}")
    numbered = list(enumerate(blocks))
    with progress:
        for number, part in progress.each(each_in_processes(task, numbered, processes if len(rows) > FEW else 1)):
            found[number] = part
    parts = [found[number] for number in range(len(blocks))] or [task.measure(rows)]
    return Pixels(**{field.name: np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Pixels)})


@dataclass(frozen=True)
class Measurement:
    """Callable for worker processes: it measures the photographs of a block of rows, and returns the number of the block and the
    measures."""

    files: ImageFiles
    max_pixels: int  # photographs with more are not decoded

    def __call__(self, block: tuple[int, np.ndarray]) -> tuple[int, Pixels]:
        return block[0], self.measure(block[1])

    def measure(self, rows: np.ndarray) -> Pixels:
        """Return the measures of the photographs of `rows`, int64 [M]."""
        count = len(rows)
        reasons, content = [""] * count, np.zeros(count, np.uint64)
        sizes, numbers, grey = np.zeros((count, 2), np.int32), np.zeros((count, 4), np.float32), np.zeros(count, bool)
        small = np.zeros((count, HASH_SIDE, HASH_SIDE), np.float32)
        decoded: dict[int, np.ndarray] = {}
        for i, row in enumerate(rows.tolist()):
            try:
                data, decoded[i], sizes[i] = self.files.inspect(row, SIDE, self.max_pixels)
            except NotAnImage as error:
                reasons[i] = (str(error) or "not an image")[:200]
                continue
            except OSError as error:
                reasons[i] = os.strerror(error.errno) if error.errno else str(error)[:200] or "cannot be read"
                continue
            content[i] = content_hash(data)
        for i, pixels in decoded.items():  # in a separate loop: interleaved with decoding it takes twice as long
            numbers[i], grey[i], small[i] = measures(pixels)
        looks = np.where([not reason for reason in reasons], perceptual_hashes(small), 0).astype(np.uint64)
        thumbnail = (
            np.rint(small.reshape(count, THUMBNAIL, HASH_SIDE // THUMBNAIL, THUMBNAIL, HASH_SIDE // THUMBNAIL).mean((2, 4)))
            .clip(0, 255)
            .astype(np.uint8)
        )
        width, height = sizes.T
        brightest, darkest, entropy, sharp = numbers.T
        return Pixels(strings(reasons), content, looks, thumbnail, width, height, brightest, darkest, entropy, sharp, grey)


def measures(pixels: np.ndarray) -> tuple[Sequence[float], bool, np.ndarray]:
    """Return the measures of one decoded photograph, uint8 [H, W, 3]: (`brightest`, `darkest`, `entropy`, `sharpness`), `grey`, and a grey
    picture float32 [32, 32]."""
    from PIL import Image

    some = pixels[::2, ::2].reshape(-1, 3)  # enough for percentiles
    brightness = np.sqrt(np.square(some, dtype=np.float32) @ _SHARE)
    last = len(brightness) - 1
    low, high = round(0.05 * last), round(0.99 * last)
    ordered = np.partition(brightness, (low, high))
    red, green, blue = some.T.astype(np.int16)
    grey = bool(max(np.abs(red - green).max(), np.abs(green - blue).max()) <= _GREY)
    image = Image.fromarray(pixels)
    lightness = np.asarray(image.convert("L"), dtype=np.float32)
    small = resampled(lightness, HASH_SIDE, HASH_SIDE)
    return (ordered[high], ordered[low], image.entropy(), sharpness(lightness)), grey, small


def sharpness(lightness: np.ndarray) -> float:
    """Return the sharpness of a picture of grey levels, float32 [H, W]: a number from 0 to 1, near 0 for a blurred picture.

    The sharpness is f(edges) + f(histogram), at most 1, where f(x) = 1 - exp(-std(x)/100). Edges are computed at 64 x 64 pixels or less.
    The histogram has the counts of the 256 grey levels; the second term is left out if it is at most 0.18. This term is large for a picture
    with few grey levels, such as a subject on a plain background, which may have few edges without being blurred."""
    from PIL import Image, ImageFilter

    ratio = max(*lightness.shape, SIDE) / SIDE
    height, width = (max(1, int(side / ratio)) for side in lightness.shape)
    small = Image.fromarray(np.rint(resampled(lightness, height, width)).clip(0, 255).astype(np.uint8))
    edges = np.asarray(small.filter(ImageFilter.FIND_EDGES))[1:-1, 1:-1]  # the filter copies the border
    laplacian = float(edges.std()) if edges.size else 0.0
    plain = 1 - math.exp(-_BLUR * np.array(small.histogram()).std())
    return min(1.0, 1 - math.exp(-_BLUR * laplacian) + (plain if plain > _PLAIN else 0.0))
