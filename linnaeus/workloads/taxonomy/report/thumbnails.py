"""Encode small photographs for HTML pages as WebP in base64, about 6 kB each."""

import base64
import io
from html import escape

import numpy as np
from PIL import Image

SIDE = 160  # pixels, longest side
QUALITY = 70  # of WebP, 0 to 100


def thumbnail(pixels: np.ndarray) -> str:
    """Return a photograph as WebP in base64, reduced so that its longest side has at most `SIDE` pixels. `pixels`: RGB uint8 [H, W, 3]."""
    image = Image.fromarray(pixels)
    image.thumbnail((SIDE, SIDE))
    content = io.BytesIO()
    image.save(content, "WEBP", quality=QUALITY)
    return base64.b64encode(content.getvalue()).decode()


def image_element(webp: str, alternative: str = "") -> str:
    """Return the HTML element `img` of a photograph. `webp`: result of `thumbnail`. `alternative`: text for screen readers."""
    return f'<img decoding="async" alt="{escape(alternative)}" src="data:image/webp;base64,{escape(webp)}">'
