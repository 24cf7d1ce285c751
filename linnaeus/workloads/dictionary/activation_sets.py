"""Datasets of activations. Batches have `activation` float32 [B, d], `weight` float32 [B] and `sample` int64 [B]. In training with a
sparsity penalty they also have `ramp` float32 [B], the factor of the penalty at the update that uses the batch.

Activations of a model are read in the order `block_order`: a random permutation of blocks, then of the activations of a window of blocks.
Both are functions of (seed, epoch). Planted activations are new in each epoch and are read in the order in which they are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from linnaeus.data.order import Blocks
from linnaeus.data.samples import Batch, PositionedDataset, SampleIndex
from linnaeus.workloads.dictionary.activation_buffer import ActivationBuffer
from linnaeus.workloads.dictionary.activation_source import Block
from linnaeus.workloads.dictionary.planted import PlantedDictionary

SAMPLE = 8192  # activations from which the scale and the geometric median are estimated
SAMPLE_BLOCKS = 32  # of so many blocks, evenly spaced
PLANTED_BLOCK = 1024
VALIDATION = 1 << 40  # number of the first planted sample for validation


class Reader(Protocol):
    """Source of activations by number. width: d. block_offsets: int64 [blocks + 1], number of the first activation of each block.

    `block` returns the activations of a block. `rows` returns the activations `numbers`, int64 [N], as (float32 [N, d], bool [N]); the
    second is False for an activation that has no weight in the loss."""

    width: int
    block_offsets: np.ndarray

    def block(self, number: int) -> Block: ...

    def rows(self, numbers: np.ndarray) -> tuple[Tensor, Tensor]: ...


def sparsity_ramp(step: np.ndarray, warmup: int) -> Tensor:
    """Return the factor of the sparsity penalty at each `step` (number of updates before it), float32: linear from 0 to 1 over `warmup`.

    warmup=0: always 1."""
    return torch.from_numpy(np.minimum(1.0, step / warmup if warmup else np.ones(len(step))).astype(np.float32))


class TrainingActivations(PositionedDataset):
    """Training set of the activations of a model, read by `reader`. window: number of blocks that are shuffled together.

    warmup: number of updates over which the sparsity penalty increases from 0; None: batches have no `ramp`."""

    def __init__(self, reader: Reader, window: int, warmup: int | None) -> None:
        self.reader, self.warmup = reader, warmup
        offsets = reader.block_offsets
        self._blocks = Blocks(int(np.diff(offsets).max()), window, offsets[:-1])

    def __len__(self) -> int:
        return int(self.reader.block_offsets[-1])

    def record_blocks(self) -> Blocks:
        return self._blocks

    def __getitems__(self, indices: Sequence[SampleIndex]) -> Batch:
        _, _, sample, step, real = np.array(indices, dtype=np.int64).reshape(-1, 5).T
        rows, counts = self.reader.rows(sample)
        batch = {
            "activation": rows,
            "weight": counts * torch.from_numpy(real.astype(np.float32)),
            "sample": torch.from_numpy(sample.copy()),
        }
        return batch if self.warmup is None else batch | {"ramp": sparsity_ramp(step, self.warmup)}

    def scale_sample(self) -> Tensor:
        """Return at most `SAMPLE` activations [N, d] from evenly spaced blocks, on the device of the reader. The scale of the dictionaries
        is fitted to them. Activations without weight are left out."""
        blocks = len(self.reader.block_offsets) - 1
        chosen = np.unique(np.linspace(0, blocks - 1, min(blocks, SAMPLE_BLOCKS)).astype(np.int64))
        buffer = None
        for number in chosen.tolist():
            block = self.reader.block(number)
            rows = block.rows[block.counts.to(block.rows.device)]
            rows = rows[:: max(1, -(-len(rows) * len(chosen) // SAMPLE))]
            buffer = buffer or ActivationBuffer(SAMPLE, self.reader.width, rows.device)
            buffer.add(rows)
        assert buffer is not None
        return buffer.ordered()


class PlantedActivations(PositionedDataset):
    """Dataset of planted activations, `size` in an epoch. first: number of its first sample in `planted`.

    new: True: each epoch has new activations; False: every epoch has the same. codes: True: batches also have `codes`, the planted
    activities [B, F]. warmup: as for `TrainingActivations`."""

    def __init__(self, planted: PlantedDictionary, size: int, first: int, new: bool, codes: bool, warmup: int | None = None) -> None:
        self.planted, self.size, self.first, self.new, self.codes, self.warmup = planted, size, first, new, codes, warmup

    def __len__(self) -> int:
        return self.size

    def __getitems__(self, indices: Sequence[SampleIndex]) -> Batch:
        epoch, position, sample, step, real = np.array(indices, dtype=np.int64).reshape(-1, 5).T
        numbers = self.first + (epoch * self.size + position if self.new else sample)
        parts = [self._read(int(run[0]), len(run)) for run in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)]
        batch = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        batch |= {"weight": torch.from_numpy(real.astype(np.float32)), "sample": torch.from_numpy(sample.copy())}
        return batch if self.warmup is None else batch | {"ramp": sparsity_ramp(step, self.warmup)}

    def _read(self, first: int, count: int) -> Batch:
        if not self.codes:
            return {"activation": self.planted.activations(first, count)}
        activation, codes = self.planted.sample(first, count)
        return {"activation": activation, "codes": codes}

    def scale_sample(self) -> Tensor:
        """Return the first N = min(`SAMPLE`, `size`) activations, [N, d]. The scale of the dictionaries is fitted to them."""
        buffer = ActivationBuffer(min(SAMPLE, self.size), self.planted.width, self.planted.device)
        for start in range(0, len(buffer.rows), PLANTED_BLOCK):
            buffer.add(self.planted.activations(self.first + start, min(PLANTED_BLOCK, len(buffer.rows) - start)))
        return buffer.ordered()
