"""simplejpeg and Pillow decode a JPEG to the same pixels, and refuse the same files."""

import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image, ImageOps

from linnaeus.workloads.taxonomy.images import decoding, jpeg
from linnaeus.workloads.taxonomy.images.decoding import NotAnImage, decode

LIMIT = 10_000_000
_rows, _columns = np.mgrid[0:150, 0:203]
_waves = [127 + 90 * np.sin(_columns / (3 + c)) * np.cos(_rows / 7) + 30 * np.sin(_rows * _columns / 97) for c in range(3)]
PHOTOGRAPH = Image.fromarray(np.stack(_waves, axis=2).clip(0, 255).astype(np.uint8))


def encoded(image: Image.Image = PHOTOGRAPH, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


def turned(tag: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = tag
    return exif


FILES = {f"subsampling {k}": encoded(subsampling=k) for k in range(3)}
FILES |= {"progressive": encoded(progressive=True), "restarts": encoded(restart_marker_rows=1), "poor": encoded(quality=5)}
FILES |= {"rgb": encoded(keep_rgb=True), "cmyk": encoded(PHOTOGRAPH.convert("CMYK")), "grey": encoded(PHOTOGRAPH.convert("L"))}
FILES |= {"turned": encoded(exif=turned(6))}


def outcome(data: bytes, short_side: int) -> np.ndarray | str:
    try:
        return decode(data, short_side, LIMIT)
    except NotAnImage as error:
        return str(error)


@pytest.fixture
def by_both(monkeypatch):
    """Return a function that decodes with simplejpeg and without, asserts that there is no difference, and returns the outcome."""
    pytest.importorskip("simplejpeg")
    library = jpeg.simplejpeg

    def decode_twice(data: bytes, short_side: int) -> np.ndarray | str:
        monkeypatch.setattr(jpeg, "simplejpeg", library)
        found = outcome(data, short_side)
        monkeypatch.setattr(jpeg, "simplejpeg", None)
        np.testing.assert_array_equal(outcome(data, short_side), found)
        return found

    return decode_twice


@pytest.mark.parametrize("name", FILES)
def test_both_return_the_same_pixels_at_every_reduction(by_both, name):
    for short_side in (448, 150, 149, 75, 40, 37, 18, 9):
        assert by_both(FILES[name], short_side).ndim == 3


def test_the_size_of_a_plain_jpeg_is_read_without_pillow(monkeypatch):
    pytest.importorskip("simplejpeg")
    plain = ("subsampling 0", "subsampling 1", "subsampling 2", "progressive", "restarts", "poor")
    assert {name: jpeg.plain_size(FILES[name]) for name in FILES} == {name: (203, 150) if name in plain else None for name in FILES}
    assert jpeg.plain_size(FILES["poor"][:200]) is jpeg.plain_size(b"") is jpeg.plain_size(b"\xff\xd8" * 20) is None

    opened, by_pillow = [], decoding._open
    monkeypatch.setattr(decoding, "_open", lambda data, limit: opened.append(data) or by_pillow(data, limit))
    assert decode(FILES["poor"], 70, LIMIT).shape == (70, 95, 3)
    assert opened == []
    decode(FILES["turned"], 70, LIMIT)
    assert opened == [FILES["turned"]]


def test_a_plain_jpeg_is_refused_for_its_size_and_its_missing_end():
    with pytest.raises(NotAnImage, match="203 x 150 pixels"):
        decode(FILES["poor"], 70, 1000)
    with pytest.raises(NotAnImage, match="the end of the image is missing"):
        decode(FILES["poor"][:-2], 70, LIMIT)


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow warns about the EXIF data
@pytest.mark.parametrize("name", FILES)
def test_both_refuse_the_same_damaged_files(by_both, name):
    rng, refused = np.random.default_rng(0), 0
    for case in range(60):
        data, place = bytearray(FILES[name]), int(rng.integers(2, len(FILES[name])))
        if case % 3 == 0:
            data[place] ^= 1 << int(rng.integers(0, 8))
        elif case % 3 == 1:
            data[place:] = b"\xff\xd9" * int(rng.integers(0, 2))
        else:
            del data[place : place + int(rng.integers(1, 40))]
        refused += isinstance(by_both(bytes(data), int(rng.choice([448, 70, 30]))), str)
    assert refused >= 10


def test_simplejpeg_is_used_for_colour_and_only_without_a_warning(monkeypatch):
    library, used = pytest.importorskip("simplejpeg"), []

    class Counted:
        @staticmethod
        def decode_jpeg(*arguments, **options):
            used.append(options)
            return library.decode_jpeg(*arguments, **options)

    monkeypatch.setattr(jpeg, "simplejpeg", Counted)
    for name in FILES:
        decode(FILES[name], 70, LIMIT)
    assert len(used) == len(FILES) - 2 and all(options["strict"] for options in used)  # not: CMYK, grey
    whole = FILES["progressive"]
    assert jpeg.decode_jpeg(whole, PHOTOGRAPH.size, 70).shape == (75, 102, 3)
    assert jpeg.decode_jpeg(whole[: len(whole) // 2] + b"\xff\xd9", PHOTOGRAPH.size, 70) is None


@pytest.mark.parametrize("tag", range(1, 9))
def test_every_exif_orientation_is_made_upright_as_by_pillow(tag):
    data = encoded(exif=turned(tag))
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    found = decode(data, 448, LIMIT)
    assert np.array_equal(found, expected) and found.flags.c_contiguous and found.flags.writeable


def test_threads_return_the_same_pixels():
    tasks = [(data, short_side) for data in FILES.values() for short_side in (448, 70)] * 4
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda task: decode(*task, LIMIT), tasks))
    for task, pixels in zip(reversed(tasks), reversed(found), strict=True):
        assert np.array_equal(decode(*task, LIMIT), pixels)
