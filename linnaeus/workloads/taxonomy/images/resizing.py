"""Resize photographs with an antialiased bilinear filter. Values differ from those of Pillow's BILINEAR by at most 1 of 255.

`resize` calls torch's kernel for uint8 pixels in channels-last layout. The kernel writes into a given output, in one thread and in integer
arithmetic (the same bits with and without AVX). From half a 500-pixel photograph to 224 pixels it takes 0.1 ms, a fifth of the time of
Pillow, which copies pixels three times. torch's public function around the kernel allocates an output, which takes twice as long as the
kernel. `INTER_AREA` and a blurred `INTER_LINEAR` of OpenCV take two to three times as long."""

import numpy as np
import torch
from torch import Tensor


def resize(pixels: np.ndarray, out: np.ndarray) -> None:
    """Resize `pixels`, uint8 [H, W, 3], into `out`, uint8 [h, w, 3]. Raise `ValueError` if `out` is not contiguous."""
    if not out.flags.c_contiguous:
        raise ValueError("out must be contiguous")  # the kernel writes it as if it were
    if pixels.shape == out.shape:
        out[...] = pixels
        return
    source = np.require(pixels, requirements=["C", "W"])  # torch warns of memory that cannot be written
    torch.ops.aten._upsample_bilinear2d_aa.out(
        channels_first(source), out.shape[:2], align_corners=False, scales_h=None, scales_w=None, out=channels_first(out)
    )


def channels_first(picture: np.ndarray) -> Tensor:
    """Return an image, uint8 [H, W, 3], as a tensor [1, 3, H, W] that shares the memory of the image."""
    return torch.from_numpy(picture[None]).permute(0, 3, 1, 2)
