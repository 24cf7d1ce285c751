"""`PositionSampler`: compute the micro-batches of one process from (epoch, step).

Micro-batch m of a global batch contains the positions m * M to (m + 1) * M - 1 of the global batch, where M is the micro-batch size. With W
processes, process m mod W runs micro-batch m at its accumulation step m // W; with `contiguous=True`, process m // A runs it at its
accumulation step m mod A, where A is the number of accumulation steps. A resume starts at an offset; no batch is read and discarded."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat

import numpy as np

from linnaeus.data.order import Blocks, block_order, epoch_order
from linnaeus.data.resampling import Resampling
from linnaeus.data.samples import SampleIndex
from linnaeus.randomness import VALIDATION, hashes, key

_MAKE_INDEX = partial(tuple.__new__, SampleIndex)  # takes half the time of SampleIndex(...)


class PositionSampler:
    """An iterable of the micro-batches of this process in one epoch. A micro-batch is a list of `SampleIndex`. Pass it as `batches` to a
    loader.

    `set_epoch(epoch, step)` sets where the next iteration starts."""

    def __init__(
        self,
        size: int,
        seed: int,
        global_batch_size: int,
        micro_batch_size: int,
        steps_per_epoch: int,
        total_steps: int,
        rank: int = 0,
        world_size: int = 1,
        groups: Callable[[int], np.ndarray | None] = lambda epoch: None,
        resampling: Resampling | None = None,
        blocks: Blocks | None = None,
        contiguous: bool = False,
    ) -> None:
        """`groups(epoch)` returns the group of each sample, int64 [size], to pair samples for mixing; None for no pairs.

        With `resampling=None` an epoch contains every sample once. `blocks` selects the order `block_order`; `groups` and `resampling` are
        then ignored. `contiguous`: True if the micro-batches of a process follow each other in the global batch."""
        assert global_batch_size % (micro_batch_size * world_size) == 0
        self.size, self.seed = size, seed
        self.global_batch_size, self.micro_batch_size = global_batch_size, micro_batch_size
        self.steps_per_epoch, self.total_steps = steps_per_epoch, total_steps
        self.rank, self.world_size = rank, world_size
        self.accumulation = global_batch_size // (micro_batch_size * world_size)
        self.groups, self.resampling, self.blocks, self.contiguous = groups, resampling, blocks, contiguous
        self.epoch = self.start = 0

    def set_epoch(self, epoch: int, step: int = 0) -> None:
        """Let the next iteration start at update `step` (counted from the start of the epoch) of `epoch`."""
        self.epoch, self.start = epoch, step

    def next_epoch(self) -> PositionSampler | None:
        """Return a sampler at the start of the epoch after this one; None if the run ends with this epoch."""
        following = copy.copy(self)
        following.set_epoch(self.epoch + 1)
        return following if following.steps() else None

    def __len__(self) -> int:
        """Return the number of micro-batches of a whole epoch on this process."""
        return self.steps_per_epoch * self.accumulation

    def steps(self) -> range:
        """Return the range of updates that the next iteration makes, counted from the start of the epoch. The last epoch of a run may be
        cut short."""
        left = self.total_steps - self.epoch * self.steps_per_epoch
        return range(self.start, min(self.steps_per_epoch, left))

    def place(self, number: int, rank: int | None = None) -> int:
        """Return the index of a micro-batch in the global batch: of the micro-batch that process `rank` runs at accumulation step `number`.
        `rank`: None for this process."""
        rank = self.rank if rank is None else rank
        return rank * self.accumulation + number if self.contiguous else number * self.world_size + rank

    def samples_in(self, global_step: int) -> int:
        """Return the number of samples in the global batch of an update, over all processes. The last batch of an epoch may be smaller."""
        return min(self.global_batch_size, self.size - global_step % self.steps_per_epoch * self.global_batch_size)

    def indices_of(self, global_step: int, rank: int | None = None) -> list[SampleIndex]:
        """Return the samples that process `rank` (None: all processes) uses in update `global_step` (counted from 0).

        The list includes the placeholders of empty micro-batches (`real` is False)."""
        epoch, step = divmod(global_step, self.steps_per_epoch)
        order, ranks = self._order(epoch), range(self.world_size) if rank is None else [rank]
        places = sorted(self.place(number, one) for number in range(self.accumulation) for one in ranks)
        return [index for place in places for index in self._micro_batch(order, epoch, step, place)]

    def __iter__(self) -> Iterator[list[SampleIndex]]:
        order = self._order(self.epoch)
        epoch, steps = self.epoch, self.steps()
        for step in steps:
            for number in range(self.accumulation):
                yield self._micro_batch(order, epoch, step, self.place(number))

    def _order(self, epoch: int) -> np.ndarray:
        """Return the dataset index of the sample at each position of `epoch`, int64 [size]."""
        if self.blocks is not None:
            return block_order(self.seed, epoch, self.size, self.blocks)
        return epoch_order(self.seed, epoch, self.size, self.groups(epoch), self.resampling)

    def _micro_batch(self, order: np.ndarray, epoch: int, step: int, place: int) -> list[SampleIndex]:
        global_step = epoch * self.steps_per_epoch + step
        first = step * self.global_batch_size + place * self.micro_batch_size
        last = min(first + self.micro_batch_size, (step + 1) * self.global_batch_size, self.size)
        if first >= last:  # after the end of a partial batch: placeholders, so that all processes run the same number of micro-batches
            return [SampleIndex(epoch, 0, int(order[0]), global_step, False)] * 2  # two, because batch norm refuses a single value
        fields = zip(repeat(epoch), range(first, last), order[first:last].tolist(), repeat(global_step), repeat(True))
        indices = list(map(_MAKE_INDEX, fields))
        return indices if last - first > 1 else [*indices, indices[0]._replace(real=False)]  # two, as above


class ValidationBatches(Sequence[list[SampleIndex]]):
    """Sequence of the validation batches of one process. A batch is a list of `SampleIndex`. With W processes, batch b belongs to process b
    mod W.

    Nothing is padded or repeated. Each list is made when it is accessed."""

    def __init__(self, samples: Sequence[int], batch: int, rank: int = 0, world_size: int = 1) -> None:
        self.samples, self.batch = samples, batch
        self.starts = range(rank * batch, len(samples), world_size * batch)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, number: int) -> list[SampleIndex]:  # type: ignore[override]
        first = self.starts[number]
        return [SampleIndex(0, i, self.samples[i], 0, True) for i in range(first, min(first + self.batch, len(self.samples)))]


def validation_part(size: int, limit: int | None) -> Sequence[int]:
    """Return the dataset indices that validation reads, in increasing order: all, or a pseudo-random subset of `limit` of them.

    The subset is the same in every pass and for every seed."""
    if limit is None or limit >= size:
        return range(size)
    return np.sort(hashes(key(0, VALIDATION), np.arange(size)).argsort(kind="stable")[:limit]).tolist()
