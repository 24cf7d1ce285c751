"""Datasets of activations. Batches have `activation` float32 [B, d], `weight` float32 [B] and `sample` int64 [B]. Training batches of
variants with a sparsity penalty also have `ramp` float32 [B], the factor of the penalty at the update that uses the batch.

Activations of a model are read in a shuffled order (`block_order`): the blocks of consecutive activations are permuted, then the
activations within each window of blocks. Both permutations are functions of (seed, epoch). Planted (synthetic) activations are new in each
epoch and are read in the order in which they are generated.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from linnaeus.data.order import Blocks
from linnaeus.data.samples import Batch, PositionedDataset, SampleIndex
from linnaeus.randomness import RESAMPLE, key, permutation
from linnaeus.workloads.dictionary.activation_buffer import ActivationBuffer
from linnaeus.workloads.dictionary.activation_source import Block
from linnaeus.workloads.dictionary.planted import PlantedDictionary

SAMPLE = 8192  # activations from which the scale and the geometric median are estimated
SAMPLE_BLOCKS = 32  # of at least so many blocks, evenly spaced
PLANTED_BLOCK = 1024
VALIDATION = 1 << 40  # number of the first planted sample for validation


class Reader(Protocol):
    """Source of activations that are read by number or by block (consecutive activations).

    width: number of dimensions d of an activation. block_offsets: int64 [blocks + 1], number of the first activation of each block.
    `block(i)` returns block i. `rows(numbers)`, int64 [N], returns (activations float32 [N, d], bool [N], False for an activation without
    weight in the loss)."""

    width: int
    block_offsets: np.ndarray

    def block(self, number: int) -> Block: ...

    def rows(self, numbers: np.ndarray) -> tuple[Tensor, Tensor]: ...


def sparsity_ramp(step: np.ndarray, warmup: int) -> Tensor:
    """Return the factor of the sparsity penalty for each entry of `step`, float32: it increases linearly from 0 to 1 over `warmup` updates.

    step: int [N], number of updates made before. warmup: 0: the factor is always 1."""
    return torch.from_numpy(np.minimum(1.0, step / warmup if warmup else np.ones(len(step))).astype(np.float32))


def _columns(indices: Sequence[SampleIndex]) -> np.ndarray:
    """Return the fields of `indices`, int64 [5, N]. `np.array(indices)` takes four times as long."""
    return np.fromiter(chain.from_iterable(indices), np.int64, 5 * len(indices)).reshape(-1, 5).T


class TrainingActivations(PositionedDataset):
    """Training set: the activations of a model, read by `reader`.

    window: number of blocks that are shuffled together. warmup: number of updates over which the sparsity penalty increases from 0; None:
    batches have no `ramp`."""

    def __init__(self, reader: Reader, window: int, warmup: int | None) -> None:
        self.reader, self.warmup = reader, warmup
        offsets = reader.block_offsets
        self._blocks = Blocks(int(np.diff(offsets).max()), window, offsets[:-1])

    def __len__(self) -> int:
        return int(self.reader.block_offsets[-1])

    def record_blocks(self) -> Blocks:
        return self._blocks

    def __getitems__(self, indices: Sequence[SampleIndex]) -> Batch:
        _, _, sample, step, real = _columns(indices)
        rows, counts = self.reader.rows(sample)
        batch = {
            "activation": rows,
            "weight": counts * torch.from_numpy(real.astype(np.float32)),
            "sample": torch.from_numpy(sample.copy()),
        }
        return batch if self.warmup is None else batch | {"ramp": sparsity_ramp(step, self.warmup)}

    def scale_sample(self) -> Tensor:
        """Return at most `SAMPLE` activations [N, d] from evenly spaced blocks, to fit the scale of the dictionaries, on the device of the
        reader.

        The activations of a block are chosen at random: evenly spaced ones can all be of few positions, such as the first tokens of texts.
        Activations without weight in the loss are left out."""
        blocks = len(self.reader.block_offsets) - 1
        enough = -(-SAMPLE * blocks // max(int(self.reader.block_offsets[-1]), 1))  # blocks with `SAMPLE` activations
        chosen = np.unique(np.linspace(0, blocks - 1, min(blocks, max(SAMPLE_BLOCKS, enough))).astype(np.int64))
        buffer = None
        for number in chosen.tolist():
            block = self.reader.block(number)
            rows = block.rows[block.counts.to(block.rows.device)]
            order = permutation(key(0, RESAMPLE, number), len(rows))[: SAMPLE // len(chosen)]
            rows = rows[torch.from_numpy(np.sort(order)).to(rows.device)]
            buffer = buffer or ActivationBuffer(SAMPLE, self.reader.width, rows.device)
            buffer.add(rows)
        assert buffer is not None
        return buffer.ordered()


class PlantedActivations(PositionedDataset):
    """Dataset of `size` planted (synthetic) activations per epoch, generated by `planted`.

    first: number of the first sample in the sequence of `planted`. new: True: each epoch has other activations. codes: True: batches also
    have `codes` [B, F], the activities of the planted features. warmup: as for `TrainingActivations`."""

    def __init__(self, planted: PlantedDictionary, size: int, first: int, new: bool, codes: bool, warmup: int | None = None) -> None:
        self.planted, self.size, self.first, self.new, self.codes, self.warmup = planted, size, first, new, codes, warmup

    def __len__(self) -> int:
        return self.size

    def __getitems__(self, indices: Sequence[SampleIndex]) -> Batch:
        epoch, position, sample, step, real = _columns(indices)
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
        """Return the first N = min(`SAMPLE`, `size`) activations [N, d], to fit the scale of the dictionaries."""
        buffer = ActivationBuffer(min(SAMPLE, self.size), self.planted.width, self.planted.device)
        for start in range(0, len(buffer.rows), PLANTED_BLOCK):
            buffer.add(self.planted.activations(self.first + start, min(PLANTED_BLOCK, len(buffer.rows) - start)))
        return buffer.ordered()
