"""The types that samples travel in: the index a loader worker receives, the dataset it asks, and the batch it returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from linnaeus.data.resampling import Resampling

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

# A flat dict of host tensors, first dimension B. Required entries: `weight` float32 [B], 1 for a real sample and 0 for the
# placeholder of an empty micro-batch; `sample` int64 [B], the dataset index of each sample.
Batch = dict[str, "Tensor"]


class SampleIndex(NamedTuple):
    """Everything a loader worker needs to make one sample, on any worker and at any time."""

    epoch: int
    position: int  # in the epoch's order; position ^ 1 is the other half of its pair
    sample: int  # index into the dataset
    global_step: int  # of the update that will use it, before that update
    real: bool = True  # False: the zero-weight placeholder of an empty micro-batch


class PositionedDataset(ABC):
    """A map-style dataset whose samples depend on nothing but their `SampleIndex`. It must be picklable and keep no state that
    alters a sample."""

    fingerprint: str

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitems__(self, indices: Sequence[SampleIndex]) -> Batch:
        """Return the collated batch of `indices`, in their order."""

    def groups(self, level: str | None) -> np.ndarray | None:
        """Return the group of each sample at `level`, int64 [N], -1 for a sample that must not be paired. None: no pairs."""
        return None

    def resampling(self) -> Resampling | None:
        """Return how often an epoch draws each sample; None: every sample once. Only the training set is asked."""
        return None
