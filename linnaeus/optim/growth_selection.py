"""Which entries of a matrix are connected next, and masks as bits. All of it on the device, and nothing waits for it."""

from __future__ import annotations

import torch
from torch import Tensor

from linnaeus.randomness import CONNECTION, key, uniforms_on

BITS = 8


def order_stream(seed: int, name: str) -> int:
    """The stream of the order in which the entries of a parameter are connected at random: a function of seed and name alone, so the
    mask at a density is the same whatever the cadence it was reached by."""
    return key(seed, CONNECTION, *name.encode())


def top_entries(scores: Tensor, count: int) -> Tensor:
    """bool [N]: the `count` (above 0) largest of `scores` [N]; of equal ones those with the lowest index."""
    least = torch.topk(scores, count, sorted=False).values.min()
    above, equal = scores > least, scores == least
    return above | (equal & (equal.cumsum(0) <= count - above.sum()))


def initial_mask(shape: torch.Size, count: int, stream: int, device: torch.device) -> Tensor:
    """bool [shape]: the first `count` entries of the random order."""
    if count == 0:
        return torch.zeros(shape, dtype=torch.bool, device=device)
    return top_entries(uniforms_on(device, stream, shape.numel()), count).view(shape)


def select_new(connected: Tensor, count: int, stream: int, gradient: Tensor | None) -> Tensor:
    """bool, of the shape of `connected`: the `count` further entries, those with the largest `gradient`. Where there is none, or it is
    not finite, those next in the random order: how many are connected never depends on what a gradient is like."""
    order = uniforms_on(connected.device, stream, connected.numel())
    scores = order
    if gradient is not None:
        magnitude = gradient.detach().abs().reshape(-1)
        scores = torch.where(magnitude.isfinite().all(), magnitude, order.to(magnitude.dtype))
    return top_entries(torch.where(connected.reshape(-1), -1.0, scores), count).view(connected.shape)


def pack(connected: Tensor) -> Tensor:
    """uint8 [ceil(N / 8)] of a bool tensor of N entries, the first of eight in the lowest bit."""
    flat = connected.reshape(-1).to(torch.uint8)
    flat = torch.nn.functional.pad(flat, (0, -flat.numel() % BITS))
    return (flat.view(-1, BITS) << torch.arange(BITS, dtype=torch.uint8, device=flat.device)).sum(1, dtype=torch.uint8)


def unpack(packed: Tensor, shape: torch.Size) -> Tensor:
    """The bool tensor [shape] that was packed."""
    bits = (packed.unsqueeze(1) >> torch.arange(BITS, dtype=torch.uint8, device=packed.device)) & 1
    return bits.reshape(-1)[: shape.numel()].view(shape).bool()
