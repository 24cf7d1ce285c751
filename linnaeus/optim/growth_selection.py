"""Select entries of a weight matrix to add to its mask of connected entries, and pack masks as bits.

All functions run on the device and do not wait for it."""

import torch
from torch import Tensor

from linnaeus.randomness import CONNECTION, key, uniforms_on

BITS = 8


def order_stream(seed: int, name: str) -> int:
    """Return the key (of `linnaeus.randomness`) of the random order in which the entries of parameter `name` are connected.

    The key depends only on `seed` and `name`, so the mask at a given density does not depend on the steps in which the density was
    reached."""
    return key(seed, CONNECTION, *name.encode())


def top_entries(scores: Tensor, count: int) -> Tensor:
    """Return a mask, bool [N], of the `count` largest entries of `scores` [N]. `count`: at least 1.

    Among equal scores, the entries with the lowest indices are chosen."""
    least = torch.topk(scores, count, sorted=False).values.min()
    above, equal = scores > least, scores == least
    return above | (equal & (equal.cumsum(0) <= count - above.sum()))


def initial_mask(shape: torch.Size, count: int, stream: int, device: torch.device) -> Tensor:
    """Return the mask at the start of growth, bool in the shape `shape`: True for the first `count` entries in the random order of
    `stream`. `count`: at least 1."""
    return top_entries(uniforms_on(device, stream, shape.numel()), count).view(shape)


def select_new(connected: Tensor, count: int, stream: int, gradient: Tensor | None) -> Tensor:
    """Return a mask, bool in the shape of `connected`, of `count` unconnected entries: the entries with the largest absolute `gradient`.

    If `gradient` is None or has a non-finite entry, choose the next `count` unconnected entries in the random order of `stream` instead.
    `count`: at least 1 and at most the number of unconnected entries."""
    order = uniforms_on(connected.device, stream, connected.numel())
    scores = order
    if gradient is not None:
        magnitude = gradient.detach().abs().reshape(-1)
        scores = torch.where(magnitude.isfinite().all(), magnitude, order.to(magnitude.dtype))
    return top_entries(torch.where(connected.reshape(-1), -1.0, scores), count).view(connected.shape)


def pack(connected: Tensor) -> Tensor:
    """Pack a bool tensor of N entries as bits: uint8 [ceil(N / 8)], the first entry of each eight in the lowest bit."""
    flat = connected.reshape(-1).to(torch.uint8)
    flat = torch.nn.functional.pad(flat, (0, -flat.numel() % BITS))
    return (flat.view(-1, BITS) << torch.arange(BITS, dtype=torch.uint8, device=flat.device)).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor, shape: torch.Size) -> Tensor:
    """Return the bool tensor of shape `shape` from which `pack` made `packed`."""
    bits = (packed.unsqueeze(1) >> torch.arange(BITS, dtype=torch.uint8, device=packed.device)) & 1
    return bits.reshape(-1)[: shape.numel()].view(shape).bool()
