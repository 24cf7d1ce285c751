"""Record the loss and the right predictions of each validation window: the table `samples` of the last validation of a run.

The record has four integers per window: the bits of its loss (float64, summed over its tokens), its number of tokens, its number of right
predictions, and the number of its source. Every window is in one batch of one process, so the sum over the processes is the record."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linnaeus.data.samples import Batch
from linnaeus.workloads.language.model.token_loss import IGNORED

WINDOWS = "windows"  # name of the counts, int64 [N, 4]


class WindowRecord:
    """Record of `size` validation windows. `sources`: names of the text's S sources; () without named sources. `names(numbers)` returns the
    names of windows."""

    def __init__(self, size: int, device: torch.device, sources: Sequence[str], names: Callable[[Sequence[int]], list[str]]) -> None:
        self.counts = {WINDOWS: torch.zeros(size, 4, dtype=torch.int64, device=device)}
        self.sources, self.names = tuple(sources), names

    def count(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        """Add the windows of a batch."""
        known = batch["target"] != IGNORED
        source = batch["source"] if self.sources else torch.zeros_like(batch["sample"])
        right = (outputs["predictions"] == batch["target"]).sum(1)
        rows = torch.stack([outputs["losses"].double().sum(1).view(torch.int64), known.sum(1), right, source], 1)
        self.counts[WINDOWS].index_add_(0, batch["sample"], torch.where(known.any(1, keepdim=True), rows, 0))  # 0 for placeholders

    def rows(self, counts: Mapping[str, Tensor]) -> Iterator[dict[str, Any]]:
        """Yield a table row for each window that was validated: its name, its number of tokens, and its values of `loss`, `top1` and
        `source/NAME/loss`. A value is a sum over the tokens of the window, over the mean number of tokens of a window, so that the mean of
        the column is the metric although the last window is shorter. `source/NAME/loss` is None for windows of other sources."""
        record = counts[WINDOWS].cpu().numpy()
        numbers = np.flatnonzero(record[:, 1])
        tokens, right, source = record[numbers, 1:].T
        losses = record[numbers, 0].copy().view(np.float64)
        mean = {name: tokens[source == s].mean() for s, name in enumerate(self.sources) if (source == s).any()}
        for i, name in enumerate(self.names(numbers.tolist())):
            loss = float(losses[i])
            row = {"sample": name, "tokens": int(tokens[i]), "loss": loss / tokens.mean(), "top1": float(right[i] / tokens.mean())}
            row |= {f"source/{n}/loss": loss / size if self.sources[source[i]] == n else None for n, size in mean.items()}
            yield row
