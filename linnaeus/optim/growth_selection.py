"""Selection of the entries of a matrix to connect, and masks packed as bits. All on the device, without waiting for it."""

import torch
from torch import Tensor

from linnaeus.randomness import CONNECTION, key, uniforms_on

BITS = 8


def order_stream(seed: int, name: str) -> int:
    """Return the random stream of the order in which the entries of parameter `name` are connected.

    It depends on seed and name only, so the mask at a density does not depend on the cadence by which it was reached."""
    return key(seed, CONNECTION, *name.encode())


def top_entries(scores: Tensor, count: int) -> Tensor:
    """Return bool [N]: the `count` (above 0) largest of `scores` [N]; of equal scores those with the lowest indices."""
    least = torch.topk(scores, count, sorted=False).values.min()
    above, equal = scores > least, scores == least
    return above | (equal & (equal.cumsum(0) <= count - above.sum()))


def initial_mask(shape: torch.Size, count: int, stream: int, device: torch.device) -> Tensor:
    """Return bool [shape]: the first `count` (above 0) entries of the random order."""
    return top_entries(uniforms_on(device, stream, shape.numel()), count).view(shape)


def select_new(connected: Tensor, count: int, stream: int, gradient: Tensor | None) -> Tensor:
    """Return bool in the shape of `connected`: the `count` unconnected entries with the largest absolute `gradient`.

    If `gradient` is None or has a non-finite entry, choose the `count` unconnected entries with the largest uniform random numbers,
    which are a function of `stream`. `count` must be above 0 and at most the number of unconnected entries."""
    order = uniforms_on(connected.device, stream, connected.numel())
    scores = order
    if gradient is not None:
        magnitude = gradient.detach().abs().reshape(-1)
        scores = torch.where(magnitude.isfinite().all(), magnitude, order.to(magnitude.dtype))
    return top_entries(torch.where(connected.reshape(-1), -1.0, scores), count).view(connected.shape)


def pack(connected: Tensor) -> Tensor:
    """Return uint8 [ceil(N / 8)] of a bool tensor of N entries, the first of each eight in the lowest bit."""
    flat = connected.reshape(-1).to(torch.uint8)
    flat = torch.nn.functional.pad(flat, (0, -flat.numel() % BITS))
    return (flat.view(-1, BITS) << torch.arange(BITS, dtype=torch.uint8, device=flat.device)).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor, shape: torch.Size) -> Tensor:
    """Return the bool tensor [shape] that `pack` packed."""
    bits = (packed.unsqueeze(1) >> torch.arange(BITS, dtype=torch.uint8, device=packed.device)) & 1
    return bits.reshape(-1)[: shape.numel()].view(shape).bool()
