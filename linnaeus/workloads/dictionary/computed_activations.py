"""Define `ComputedActivations`: activations that the frozen model computes when they are needed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from linnaeus.workloads.dictionary.activation_buffer import ActivationBuffer
from linnaeus.workloads.dictionary.activation_source import ActivationSource, Block


class ComputedActivations:
    """Reader of the activations of `source`, which are computed block by block when they are needed.

    The newest activations are kept in an `ActivationBuffer` with room for two windows (blocks that are shuffled together), so each block is
    computed once per epoch. The buffer is only a cache: the returned values do not depend on it, and it is not saved in checkpoints. With
    several processes, each computes the blocks that it reads."""

    def __init__(self, source: ActivationSource, window: int) -> None:
        """window: number of blocks that are shuffled together."""
        self.source, self.width, self.block_offsets = source, source.width, source.block_offsets
        self._size = 2 * window * int(np.diff(source.block_offsets).max())
        self._buffer: ActivationBuffer | None = None  # made when it is first used: much memory
        self._first: dict[int, int] = {}  # block -> number of its first activation in the ring
        self._counts = np.zeros(0, dtype=bool)  # for each row of the buffer, whether it has weight in the loss

    def block(self, number: int) -> Block:
        """Return the activations of block `number`, computed now."""
        return self.source.read(number)

    def rows(self, numbers: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the activations `numbers`, int64 [N]: (float32 [N, d] on the device of the model, bool [N] on the host).

        The bool is False for an activation of a sample that cannot be decoded."""
        blocks = np.searchsorted(self.block_offsets, numbers, side="right") - 1
        distinct = np.unique(blocks)
        buffer = self._with(distinct)
        first = np.array([self._first[block] for block in distinct.tolist()], dtype=np.int64)
        local, place = numbers - self.block_offsets[blocks], np.searchsorted(distinct, blocks)
        at = (first[place] + local) % len(buffer.rows)
        return buffer.rows[torch.from_numpy(at).to(buffer.rows.device, non_blocking=True)], torch.from_numpy(self._counts[at])

    def _with(self, blocks: np.ndarray) -> ActivationBuffer:
        """Return the buffer, which then contains the activations of all `blocks` (block numbers).

        Blocks that are missing in the buffer are computed. A buffer that is too small is replaced by a larger one."""
        needed = int((self.block_offsets[blocks + 1] - self.block_offsets[blocks]).sum())
        buffer = self._buffer
        if buffer is None or needed > len(buffer.rows):
            self._size = max(self._size, needed)
            buffer = self._buffer = ActivationBuffer(self._size, self.width, self.source.device)
            self._first, self._counts = {}, np.zeros(self._size, dtype=bool)
        for _ in range(2):  # a block that is needed may be overwritten by another one: then all are computed again
            for block in (number for number in blocks.tolist() if not self._present(number)):
                self._first[block] = buffer.added
                found = self.source.read(block)
                self._counts[(buffer.added + np.arange(len(found.counts))) % self._size] = found.counts.numpy()
                buffer.add(found.rows)
            if all(self._present(number) for number in blocks.tolist()):
                break
            self._first = {}
        self._first = {block: first for block, first in self._first.items() if buffer.contains(first)}
        return buffer

    def _present(self, block: int) -> bool:
        return self._buffer is not None and block in self._first and self._buffer.contains(self._first[block])
