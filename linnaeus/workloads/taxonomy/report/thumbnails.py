"""Small photographs for HTML pages, as WebP in base64. One takes about 6 kB."""

import base64
import io
from html import escape

import numpy as np
from PIL import Image

SIDE = 160  # pixels of the side of the square into which a photograph fits
QUALITY = 70  # of WebP


def thumbnail(pixels: np.ndarray) -> str:
    """Return a photograph, RGB uint8 [H, W, 3], as WebP in base64."""
    image = Image.fromarray(pixels)
    image.thumbnail((SIDE, SIDE))
    content = io.BytesIO()
    image.save(content, "WEBP", quality=QUALITY)
    return base64.b64encode(content.getvalue()).decode()


def image_element(webp: str, alternative: str = "") -> str:
    """Return the HTML element of a photograph from `thumbnail`. `alternative`: text for people who do not see it."""
    return f'<img decoding="async" alt="{escape(alternative)}" src="data:image/webp;base64,{escape(webp)}">'
