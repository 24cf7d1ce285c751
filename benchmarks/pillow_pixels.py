"""Plugin that decodes and resizes photographs by Pillow alone: `plugins=[benchmarks.pillow_pixels]`.

When it is imported, it replaces functions of the decoder and of the augmentation. `benchmarks.data_accuracy` trains with it and without it.
"""

import numpy as np
from PIL import Image

from linnaeus.workloads.taxonomy.augment import geometry
from linnaeus.workloads.taxonomy.images import decoding, jpeg


def resize(pixels: np.ndarray, out: np.ndarray) -> None:
    """Resize `pixels`, uint8 [H, W, 3], into `out`, uint8 [h, w, 3], by Pillow's bilinear filter."""
    height, width = out.shape[:2]
    out[...] = np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))


jpeg.simplejpeg = None
geometry.resize = decoding.resize = resize
