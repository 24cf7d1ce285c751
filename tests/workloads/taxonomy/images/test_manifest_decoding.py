"""Every kind of image file becomes upright RGB or raises an error with a reason. Repeated reads return the same pixels."""

import contextlib
import io
import os
import pickle

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from linnaeus.workloads.taxonomy.images import image_files
from linnaeus.workloads.taxonomy.images import photographs as photographs_module
from linnaeus.workloads.taxonomy.images.decoding import NotAnImage, decode, decoded
from linnaeus.workloads.taxonomy.images.image_cache import SharedImageCache
from linnaeus.workloads.taxonomy.images.image_files import FolderFiles
from linnaeus.workloads.taxonomy.images.photographs import PhotographReader
from linnaeus.workloads.taxonomy.observations import UndecodableImage

LIMIT = 10_000_000
RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)


def read(folder, name, short_side=64):
    return decode((folder / name).read_bytes(), short_side, LIMIT)


def assert_halves(pixels, left, right, tolerance=12):
    height, width = pixels.shape[:2]
    for colour, column in ((left, width // 4), (right, 3 * width // 4)):
        np.testing.assert_allclose(pixels[height // 2, column].astype(int), colour, atol=tolerance)


HALVES = dict.fromkeys(("plain.jpg", "cmyk.jpg", "palette.png", "animated.gif", "bad_exif.jpg", "large.jpg"), (RED, BLUE))
HALVES |= {"alpha.png": (WHITE, BLUE), "palette_clear.png": (WHITE, BLUE)}
HALVES |= {"grey.jpg": ((76,) * 3, (29,) * 3), "grey_alpha.png": (WHITE, (29,) * 3)}


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("name", HALVES)
def test_images_of_every_kind_have_red_and_blue_halves(nasty, name):
    assert_halves(read(nasty, name), *HALVES[name])


@pytest.mark.parametrize("name", ["sixteen.png", "twelve.tif", "float.tif"])
def test_values_of_more_than_8_bits_are_scaled_and_not_clipped(nasty, name):
    np.testing.assert_allclose(read(nasty, name)[30, :, 0].astype(int), np.linspace(0, 255, 80), atol=2)


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (7, 4)])
@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_every_turn_of_every_size_gives_memory_that_torch_accepts(kind, turn, size):
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = turn
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)).save(file, kind, exif=exif)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(file)))
    for pixels in (decode(file.getvalue(), 64, LIMIT), decoded(Image.open(file), 64)):
        assert np.array_equal(torch.from_numpy(pixels).numpy(), expected)
        pixels[:] = 0


def test_bilevel_is_black_and_white(nasty):
    assert set(np.unique(read(nasty, "bilevel.png"))) <= {0, 255}


def test_a_large_jpeg_is_reduced_to_the_short_side_and_small_images_are_not_enlarged(nasty):
    for short_side in (16, 100, 448):
        pixels = read(nasty, "large.jpg", short_side)
        assert pixels.shape == (short_side, round(short_side * 4 / 3), 3)
        assert_halves(pixels, RED, BLUE)
    assert read(nasty, "plain.jpg", 500).shape == (60, 80, 3)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("truncated.jpg", "truncated"),
        ("truncated.png", "[Tt]runcated|broken|IDAT|stream"),
        ("text.jpg", "not an image"),
        ("empty.jpg", "empty"),
        ("headless.jpg", "not an image|broken|marker|decoder"),
        ("bomb.png", "data.max_image_pixels"),
    ],
)
def test_bytes_that_are_not_an_image_are_an_error_with_a_reason(nasty, name, reason):
    with pytest.raises(NotAnImage, match=reason):
        read(nasty, name)


def test_the_configured_limit_of_pixels_replaces_that_of_pillow(nasty, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    data = (nasty / "plain.jpg").read_bytes()
    assert decode(data, 64, 80 * 60).shape == (60, 80, 3)
    with pytest.raises(NotAnImage, match="80 x 60 pixels"):
        decode(data, 64, 80 * 60 - 1)


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow warns about the EXIF data
def test_damaged_bytes_are_decoded_or_raise_only_the_one_error(nasty):
    rng = np.random.default_rng(0)
    for name in ("plain.jpg", "palette.png", "sixteen.png", "animated.gif", "turned.jpg", "twelve.tif"):
        whole = np.frombuffer((nasty / name).read_bytes(), dtype=np.uint8)
        for _ in range(40):
            damaged = whole.copy()
            damaged[rng.integers(0, len(whole), 8)] = rng.integers(0, 256, 8)
            with contextlib.suppress(NotAnImage):
                assert decode(damaged.tobytes(), 64, LIMIT).dtype == np.uint8


def reader(folder, names):
    return PhotographReader(FolderFiles(folder, names), 32, LIMIT)


def test_the_reader_names_the_observation_that_cannot_be_decoded(nasty):
    with pytest.raises(UndecodableImage) as caught:
        reader(nasty, ["plain.jpg", "text.jpg"]).read(np.array([0, 1]))
    assert caught.value.sample == 1


def test_reading_again_and_in_a_pickled_reader_gives_the_same_pixels(nasty, monkeypatch):
    names = ["plain.jpg", "turned.jpg", "large.jpg", "grey.jpg", "sixteen.png"]
    photographs = reader(nasty, names)
    first = photographs.read(np.arange(5))
    assert photographs.cache is not None and all(photographs.cache.get(i) is not None for i in range(5))
    copy = pickle.loads(pickle.dumps(photographs))
    assert copy.cache.get(0) is None
    photographs.read(np.array([0]))[0][:] = 0  # a copy: does not change the cache
    monkeypatch.setattr(photographs_module, "CACHE_LIMIT", 0)
    uncached = reader(nasty, names)
    assert uncached.cache is None
    for other in (photographs, copy, uncached):
        assert all(np.array_equal(a, b) for a, b in zip(first, other.read(np.arange(5)), strict=True))


def test_forked_processes_share_the_cache():
    cache = SharedImageCache(np.array([12, 0, 12]))
    child = os.fork()
    if child == 0:
        cache.put(2, np.full((2, 2, 3), 7, dtype=np.uint8))
        cache.put(0, np.zeros((9, 9, 3), dtype=np.uint8))  # too large: not kept
        os._exit(0)
    os.waitpid(child, 0)
    assert cache.get(0) is None and cache.get(1) is None
    assert (cache.get(2) == 7).all()


def test_a_read_that_may_succeed_later_is_tried_again_and_then_raised(nasty, tmp_path, monkeypatch):
    waits = []
    monkeypatch.setattr(image_files.time, "sleep", waits.append)
    Image.new("RGB", (8, 8)).save(tmp_path / "gone.jpg")
    photographs = reader(tmp_path, ["gone.jpg"])
    data = (tmp_path / "gone.jpg").read_bytes()
    (tmp_path / "gone.jpg").unlink()
    with pytest.raises(FileNotFoundError):
        photographs.read(np.array([0]))
    assert len(waits) == 2
    monkeypatch.setattr(image_files.time, "sleep", lambda _: (tmp_path / "gone.jpg").write_bytes(data))
    assert photographs.read(np.array([0]))[0].shape == (8, 8, 3)
