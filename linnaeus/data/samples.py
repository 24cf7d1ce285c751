"""Interface between datasets and loaders: the index that a loader worker receives, the dataset that it reads, and the batch that it
returns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from linnaeus.data.order import Blocks
from linnaeus.data.resampling import Resampling

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

# A flat dict of host tensors, first dimension B. Required entries: `weight` float32 [B], 1 for a real sample and 0 for the
# placeholder of an empty micro-batch; `sample` int64 [B], the dataset index of each sample.
Batch = dict[str, "Tensor"]


class SampleIndex(NamedTuple):
    """Position of one sample in training. The content of a sample depends only on this, so every worker returns the same sample."""

    epoch: int
    position: int  # in the order of the epoch; position ^ 1 is the other sample of its slot
    sample: int  # index into the dataset
    global_step: int  # number of updates before the one that uses it
    real: bool = True  # False: the zero-weight placeholder of an empty micro-batch


class PositionedDataset(ABC):
    """Abstract base of map-style datasets whose samples depend only on their `SampleIndex`.

    A dataset must not have a state that changes its samples. Loader workers are forks of the training process: open files when a batch is
    read, not in the constructor."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitems__(self, indices: Sequence[SampleIndex]) -> Batch:
        """Return the collated batch of `indices`, in their order."""

    def groups(self, level: str | None) -> np.ndarray | None:
        """Return the group of each sample at the taxonomic rank `level`: int64 [N], -1 for a sample that must not be paired. Samples of one
        group may be mixed.

        Return None if no samples are paired, as for `level=None`."""
        return None

    def record_blocks(self) -> Blocks | None:
        """Return the parameters of `block_order` if the training set should be read in that order; None for `epoch_order`."""
        return None

    def resampling(self) -> Resampling | None:
        """Return the class resampling of the training set; None: every sample occurs once per epoch."""
        return None
