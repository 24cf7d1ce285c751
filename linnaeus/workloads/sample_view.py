"""Define `SampleView`: how samples and outputs of a workload are shown on an HTML page about single samples, such as the page of a
dictionary.

`Workload.sample_view()` returns the view. The default shows a sample by its name and no output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape

import numpy as np
from torch import Tensor, nn

from linnaeus.data.samples import Batch


class SampleView:
    """Object that formats samples and outputs of a workload for an HTML page. `outputs`: group of outputs -> names of its C outputs.
    `classes`: the groups whose outputs are classes of the samples, coarse to fine."""

    outputs: Mapping[str, Sequence[str]] = {}
    classes: tuple[str, ...] = ()

    def __init__(self, name: Callable[[int], str] = str) -> None:
        """name: function that returns the name of a sample from its number."""
        self.name = name

    def scores(self, model: nn.Module, batch: Batch, position: Tensor | None) -> dict[str, Tensor]:
        """Return the log-probabilities [B, C] of each group of outputs for a prepared batch.

        position: int64 [B], the position in each sequence whose outputs are returned; None: the last position. Models with one output for a
        sample ignore `position`."""
        return {}

    def labels(self, batch: Batch) -> dict[str, Tensor]:
        """Return for each group in `classes` the class of each sample of a batch, int64 [B], -1 where the class is unknown."""
        return {}

    def html(self, batch: Batch, row: int, heat: np.ndarray | None) -> str:
        """Return the sample in row `row` of a host batch as HTML.

        heat: strength from 0 to 1 at each position of the sample, [T] for tokens or [H, W] for a feature map; None: no heat is shown."""
        return f"<code>{escape(self.name(int(batch['sample'][row])))}</code>"
