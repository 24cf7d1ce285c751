"""Damaged image files are refused and never decoded in part. Only the listed formats are decoded, by content."""

import io
import os

import numpy as np
import pytest
from PIL import Image

from linnaeus.workloads.taxonomy.images import image_files
from linnaeus.workloads.taxonomy.images.decoding import FORMATS, NotAnImage, decode
from linnaeus.workloads.taxonomy.images.image_files import REASONS, TOO_LARGE, FolderFiles
from linnaeus.workloads.taxonomy.images.photographs import PhotographReader
from linnaeus.workloads.taxonomy.observations import UndecodableImage

LIMIT = 10_000_000
PHOTOGRAPH = Image.fromarray(
    (np.random.default_rng(0).integers(0, 60, (48, 64, 3)) + np.arange(64)[None, :, None] * 3).astype(np.uint8), mode="RGB"
)
UPRIGHT = Image.Exif()
UPRIGHT[0x0112] = 6  # rotated by 90 degrees


def encoded(form: str, image: Image.Image = PHOTOGRAPH, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


FILES = {
    "png": encoded("PNG"),
    "png with exif": encoded("PNG", exif=UPRIGHT),
    "animated png": encoded("PNG", save_all=True, append_images=[PHOTOGRAPH.rotate(180)]),
    "palette png": encoded("PNG", PHOTOGRAPH.quantize(64)),
    "jpeg": encoded("JPEG"),
    "progressive jpeg": encoded("JPEG", progressive=True),
    "jpeg with restarts": encoded("JPEG", restart_marker_rows=1),
    "cmyk jpeg": encoded("JPEG", PHOTOGRAPH.convert("CMYK")),
    "webp": encoded("WEBP"),
    "lossless webp": encoded("WEBP", lossless=True),
    "gif": encoded("GIF"),
    "bmp": encoded("BMP"),
    "tiff": encoded("TIFF"),
    "lzw tiff": encoded("TIFF", compression="tiff_lzw"),
    "jpeg tiff": encoded("TIFF", compression="jpeg"),
}


def pixels(data: bytes) -> np.ndarray | None:
    try:
        return decode(data, 64, LIMIT)
    except NotAnImage:
        return None


@pytest.mark.parametrize("name", [name for name in FILES if "png" in name])
def test_a_png_with_one_flipped_bit_is_refused(name):
    whole = FILES[name]
    for position in np.random.default_rng(1).choice(len(whole) * 8, 60, replace=False).tolist():
        damaged = bytearray(whole)
        damaged[position // 8] ^= 1 << position % 8
        assert pixels(bytes(damaged)) is None, position


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow warns about the EXIF data
@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file_is_refused_or_has_all_its_pixels(name):
    whole = FILES[name]
    expected = pixels(whole)
    assert expected is not None
    for length in np.linspace(1, len(whole) - 1, 30).astype(int).tolist():
        found = pixels(whole[:length])
        assert found is None or np.array_equal(found, expected), length


@pytest.mark.parametrize("name", [name for name in FILES if "jpeg" in name and "progressive" not in name and "tiff" not in name])
def test_a_truncated_jpeg_with_an_end_marker_is_refused(name):
    whole = FILES[name]
    for share in (0.7, 0.8, 0.95):
        with pytest.raises(NotAnImage, match="truncated JPEG"):
            decode(whole[: int(len(whole) * share)] + b"\xff\xd9", 64, LIMIT)


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_a_grey_photograph_and_data_after_the_end_are_accepted(mode):
    grey = encoded("JPEG", Image.new("RGB", (40, 40), (128, 128, 128)).convert(mode), progressive=mode == "L")
    assert pixels(grey) is not None and pixels(grey + b"appended by a camera \xff\x01") is not None


def test_a_jpeg_with_a_marker_that_cannot_occur_is_refused():
    whole = FILES["jpeg"]
    with pytest.raises(NotAnImage, match="invalid marker 0xD8"):
        decode(whole[:-100] + b"\xff\xd8" + whole[-100:], 64, LIMIT)


def test_a_tiff_whose_jpeg_strip_is_cut_short_is_refused():
    tags = Image.open(io.BytesIO(FILES["jpeg tiff"])).tag_v2
    whole, start, size = bytearray(FILES["jpeg tiff"]), tags[273][0], tags[279][0]
    whole[start + size - 200 : start + size] = bytes(200)
    assert pixels(bytes(whole)) is None


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_a_rotated_photograph_is_turned_once(form):
    image = Image.new("RGB", (40, 20), "red")
    image.paste((0, 0, 255), (20, 0, 40, 20))
    found = pixels(encoded(form, image, exif=UPRIGHT))
    assert found.shape == (40, 20, 3)
    assert found[2, 10, 0] > 200 and found[-3, 10, 2] > 200  # the left half is on top


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n{} loop\n%%EOF\n"
OTHERS = {"postscript": POSTSCRIPT, "ppm": encoded("PPM"), "tga": encoded("TGA"), "ico": encoded("ICO"), "jp2": encoded("JPEG2000")}


@pytest.mark.parametrize("name", OTHERS)
def test_other_formats_are_not_opened_under_any_name(name, tmp_path):
    (tmp_path / "photo.jpg").write_bytes(OTHERS[name])
    reader = PhotographReader(FolderFiles(tmp_path, ["photo.jpg"]), 32, LIMIT)
    with pytest.raises(UndecodableImage, match=f"not an image of a format that is read .{', '.join(FORMATS)}."):
        reader.read(np.array([0]))


def test_the_format_is_that_of_the_content(tmp_path):
    (tmp_path / "photo.gif").write_bytes(FILES["png"])
    reader = PhotographReader(FolderFiles(tmp_path, ["photo.gif"]), 32, LIMIT)
    np.testing.assert_array_equal(reader.read(np.array([0]))[0], np.asarray(PHOTOGRAPH))


def test_a_file_above_the_limit_is_named_at_the_start_and_not_read_later(tmp_path, monkeypatch):
    monkeypatch.setattr(image_files, "LARGEST_FILE", 1000)
    for name, size in (("small.jpg", 1000), ("large.jpg", 1001)):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, size)
    sizes = FolderFiles(tmp_path, ["small.jpg", "large.jpg"]).sizes()
    assert sizes.tolist() == [1000, TOO_LARGE] and "256 MiB" in REASONS[TOO_LARGE]
    reader = PhotographReader(FolderFiles(tmp_path, ["large.jpg"]), 32, LIMIT)
    with pytest.raises(UndecodableImage, match="larger than 256 MiB"):
        reader.read(np.array([0]))
