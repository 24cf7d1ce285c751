"""Resize photographs by an antialiased bilinear filter: the triangle of Pillow, whose pixels it returns but for one level of 255.

It is the kernel of torch for uint8 pixels whose channels lie side by side. It writes into the output given, in integer arithmetic (the
same bits with and without AVX) and in one thread: 0.1 ms from half a 500-pixel photograph to 224 pixels, a fifth of the time of Pillow,
which copies pixels three times. The public function of torch around it allocates its output, which takes twice as long as the kernel.
`INTER_AREA` and a blurred `INTER_LINEAR` of OpenCV take two to three times as long.
"""

import numpy as np
import torch
from torch import Tensor


def resize(pixels: np.ndarray, out: np.ndarray) -> None:
    """Resize uint8 [H, W, 3] `pixels` into uint8 [h, w, 3] `out`. Raise `ValueError` if `out` is not contiguous."""
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
    """Return uint8 [H, W, 3] as a tensor [1, 3, H, W] of the same memory."""
    return torch.from_numpy(picture[None]).permute(0, 3, 1, 2)
