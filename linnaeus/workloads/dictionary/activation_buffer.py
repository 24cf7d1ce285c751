"""Define `ActivationBuffer`, a ring buffer with the newest activations."""

from __future__ import annotations

import torch
from torch import Tensor


class ActivationBuffer:
    """Ring buffer with the newest `size` activations, each of `dim` numbers, on `device`.

    Activation number n, counted from 0 in the order of `add`, is in row n mod `size` of `rows` until a newer activation overwrites it. ptr:
    index of the row in which the next activation is stored. added: number of activations added so far. `len(buffer)`: number of activations
    present."""

    def __init__(self, size: int, dim: int, device: torch.device | str = "cpu") -> None:
        if size < 1 or dim < 1:
            raise ValueError(f"size is {size} and dim is {dim}; both must be at least 1")
        self.rows = torch.zeros(size, dim, device=device)
        self.ptr = self.added = 0

    def __len__(self) -> int:
        return min(self.added, len(self.rows))

    @torch.no_grad()
    def add(self, activations: Tensor) -> None:
        """Append activations [..., dim] in their order. If there are more than `size`, only the last `size` are kept.

        Raise `ValueError` if the last dimension is not `dim`."""
        size, dim = self.rows.shape
        if not activations.dim() or activations.shape[-1] != dim:
            raise ValueError(f"activations are {list(activations.shape)}; the last dimension must be {dim}")
        flat = activations.reshape(-1, dim)
        self.ptr = (self.ptr + max(len(flat) - size, 0)) % size
        kept = flat[-size:]
        first = min(len(kept), size - self.ptr)
        self.rows[self.ptr : self.ptr + first] = kept[:first]
        self.rows[: len(kept) - first] = kept[first:]
        self.ptr = (self.ptr + len(kept)) % size
        self.added += len(flat)

    def contains(self, number: int) -> bool:
        """Return True if activation `number` was added and is not overwritten."""
        return self.added - len(self) <= number < self.added

    def ordered(self) -> Tensor:
        """Return the activations that are present, oldest first, [len, dim]."""
        return self.rows[: len(self)] if self.added <= len(self.rows) else torch.cat([self.rows[self.ptr :], self.rows[: self.ptr]])
