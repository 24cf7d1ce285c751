"""Make a folder with every kind of difficult image file."""

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(scope="session")
def nasty(tmp_path_factory):
    """Return a folder of images. Unless their name differs, they have 80 x 60 pixels, red in the left half and blue in the right."""
    folder = tmp_path_factory.mktemp("nasty")
    rgb = np.zeros((60, 80, 3), dtype=np.uint8)
    rgb[:, :40, 0] = rgb[:, 40:, 2] = 255
    image = Image.fromarray(rgb)
    image.save(folder / "plain.jpg", quality=95)
    image.convert("CMYK").save(folder / "cmyk.jpg", quality=95)
    image.convert("L").save(folder / "grey.jpg")
    image.quantize(4).save(folder / "palette.png")
    clear = image.quantize(4)
    clear.save(folder / "palette_clear.png", transparency=clear.getpixel((0, 0)))
    alpha = image.convert("RGBA")
    alpha.putalpha(Image.fromarray(np.where(np.arange(80) < 40, 0, 255).astype(np.uint8)[None].repeat(60, 0)))
    alpha.save(folder / "alpha.png")
    alpha.convert("LA").save(folder / "grey_alpha.png")
    ramp = np.linspace(0, 65535, 80).astype(np.uint16)[None].repeat(60, 0)
    Image.fromarray(ramp).save(folder / "sixteen.png")
    Image.fromarray(ramp >> 4).save(folder / "twelve.tif")
    Image.fromarray(ramp.astype(np.float32) / 65535).save(folder / "float.tif")
    image.convert("1").save(folder / "bilevel.png")
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was rotated: show it rotated by 90 degrees clockwise
    image.save(folder / "turned.jpg", exif=exif, quality=95)
    image.save(folder / "bad_exif.jpg", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff junk", quality=95)
    image.save(folder / "animated.gif", save_all=True, append_images=[Image.new("RGB", (80, 60), "white")])
    Image.fromarray(rgb.repeat(20, 0).repeat(20, 1)).save(folder / "large.jpg", quality=95)
    whole = (folder / "large.jpg").read_bytes()
    (folder / "truncated.jpg").write_bytes(whole[: len(whole) // 2])
    png = (folder / "alpha.png").read_bytes()
    (folder / "truncated.png").write_bytes(png[: len(png) // 2])
    (folder / "text.jpg").write_text("this is not a photograph")
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "headless.jpg").write_bytes(b"\xff\xd8\xff\xe0" + bytes(200))
    Image.new("1", (8000, 8000)).save(folder / "bomb.png")
    return folder
