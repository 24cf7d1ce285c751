"""Photographs are resized as by Pillow's antialiased bilinear filter, without aliases, into the memory given."""

import numpy as np
import pytest
import torch
from PIL import Image

from linnaeus.workloads.taxonomy.images.resizing import resize


def resized(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    out = np.empty((height, width, 3), np.uint8)
    resize(pixels, out)
    return out


def by_pillow(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3)).astype(np.uint8)


@pytest.mark.parametrize("size", [(500, 375), (448, 600), (48, 40), (224, 225), (1, 3000), (30, 1), (2, 2)])
def test_the_pixels_are_those_of_pillow_but_for_one_level(size):
    pixels = noise(*size)
    for height, width in ((224, 224), (48, 64), (7, 5), (1, 6), (6, 1), (1, 1)):
        difference = np.abs(resized(pixels, height, width).astype(int) - by_pillow(pixels, height, width))
        assert difference.max() <= 1 and difference.mean() < 0.1


def test_a_picture_of_the_right_size_is_copied():
    pixels = noise(20, 30)
    out = resized(pixels, 20, 30)
    assert np.array_equal(out, pixels) and not np.shares_memory(out, pixels)


@pytest.mark.filterwarnings("error")
def test_parts_of_a_picture_and_memory_that_cannot_be_written_are_accepted():
    pixels = noise(60, 80)
    pixels.flags.writeable = False
    for part in (pixels, pixels[5:40], pixels[10:50, 20:70], pixels[::-1, ::2]):
        assert np.array_equal(resized(part, 16, 16), resized(part.copy(), 16, 16))
    batch = np.zeros((3, 16, 16, 3), np.uint8)
    resize(pixels, batch[1])
    assert np.array_equal(batch[1], resized(pixels, 16, 16)) and not batch[::2].any()
    with pytest.raises(ValueError, match="contiguous"):
        resize(pixels, np.zeros((16, 20, 3), np.uint8)[:, 2:18])


def test_frequencies_above_those_of_the_output_vanish():
    """A zone plate has frequencies that grow with the radius, up to those of its own pixels at half its side."""
    side, out = 500, 200
    y, x = np.mgrid[0:side, 0:side] - (side - 1) / 2
    plate = np.rint(127.5 + 127.5 * np.cos(np.pi * (x**2 + y**2) / side)).astype(np.uint8)[..., None].repeat(3, axis=2)
    y, x = np.mgrid[0:out, 0:out] - (out - 1) / 2
    outside = (np.hypot(x, y) > 1.5 * out / 2 * out / side) & (np.hypot(x, y) < out / 2)  # 1.5 times the highest frequency of the output

    def alias(pixels: np.ndarray) -> float:
        return float(pixels[outside, 0].astype(float).var())

    tensor = torch.from_numpy(plate).permute(2, 0, 1)[None].float()
    plain = torch.nn.functional.interpolate(tensor, size=(out, out), mode="bilinear")[0].permute(1, 2, 0).numpy()
    assert alias(resized(plate, out, out)) < 1.02 * alias(by_pillow(plate, out, out))
    assert alias(resized(plate, out, out)) < 0.02 * 127.5**2 / 2 < alias(plain)  # negative control: a filter that is not antialiased
