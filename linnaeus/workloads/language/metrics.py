"""Metrics of next-token prediction: `loss` in nats per token, `perplexity`, `bits_per_byte`, and in validation `top1`.

Bits per byte divide the loss by the bytes of UTF-8 that the predicted tokens stand for, so texts cut into different tokens compare. The
end marker stands for no byte, and its loss counts.

Where the text has named sources, validation has `source/NAME/loss`, that of the tokens of each. Where the model has dimensions, it scores
them: `dimension/NAME/score` is how many nats per token are lost without it, over the windows that were also run without it (every D-th
of them).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from linnaeus.data.samples import Batch
from linnaeus.metrics.streaming import Metrics
from linnaeus.workloads.language.model.dimensions import switched_off
from linnaeus.workloads.language.model.token_loss import IGNORED

Outputs = Mapping[str, Tensor]


class LanguageMetrics(Metrics):
    """Implements `base.Metrics`. In training the loop adds up the losses itself, and there is no `top1`: to look for the best of 50,257
    scores takes 1 % of a step."""

    def __init__(
        self,
        training: bool,
        lengths: np.ndarray | None,
        device: torch.device,
        dimensions: Sequence[str] = (),
        sources: Sequence[str] = (),
    ) -> None:
        """`lengths` int64 [V]: bytes of each token; None: not known, and bits per byte are NaN. `dimensions`: names of the model's, and
        `sources` of the text's."""
        self.training = training
        self.dimensions, self.sources = ((), ()) if training else (tuple(dimensions), tuple(sources))
        self.width = 2 + 2 * len(self.sources) + 2 * len(self.dimensions)
        self._lengths = torch.as_tensor(lengths, device=device) if lengths is not None else None
        self.counts = {"bytes": torch.zeros((), dtype=torch.int64, device=device)}
        if not training:
            self.counts["right"] = torch.zeros_like(self.counts["bytes"])

    def sums(self, outputs: Outputs, batch: Batch) -> Tensor:
        """float64 [2 + 2 S + 2 D]: losses, and how many; both of each source; for each dimension what is lost without it, and over how
        many tokens."""
        losses, known = outputs["losses"].double(), (batch["target"] != IGNORED).double()
        parts = [torch.stack([losses.sum(), known.sum()])]
        if self.sources:
            of = (batch["source"][:, None] == torch.arange(len(self.sources), device=losses.device)).double()
            parts += [(each.sum(1, keepdim=True) * of).sum(0) for each in (losses, known)]
        if self.dimensions:
            off = switched_off(batch["sample"], len(self.dimensions)).double()
            lost = outputs["losses_without"].double() - losses
            parts += [(each.sum(1, keepdim=True) * off).sum(0) for each in (lost, known)]
        return torch.cat(parts)

    def count(self, outputs: Outputs, batch: Batch) -> None:
        target = batch["target"]
        if not self.training:
            self.counts["right"] += (outputs["best"] == target).sum()  # no token is IGNORED
        if self._lengths is not None:
            self.counts["bytes"] += (self._lengths[target.clamp(min=0)] * (target != IGNORED)).sum()

    def compute(self, sums: Tensor, counts: Mapping[str, Tensor]) -> dict[str, float]:
        losses, targets, *more = sums.tolist()
        loss, size = _mean(losses, targets), int(counts["bytes"])
        found = {"loss": loss, "perplexity": perplexity(loss), "bits_per_byte": _mean(losses / math.log(2), size)}
        if self.training:
            return found
        found["top1"] = _mean(int(counts["right"]), targets)
        of_sources, of_dimensions = more[: 2 * len(self.sources)], more[2 * len(self.sources) :]
        found |= {f"source/{name}/loss": mean for name, mean in _means(self.sources, of_sources)}
        return found | {f"dimension/{name}/score": mean for name, mean in _means(self.dimensions, of_dimensions)}


def _means(names: Sequence[str], sums: Sequence[float]) -> Iterator[tuple[str, float]]:
    """Of each name; `sums` are the totals of all, then how many each is of."""
    for name, total, number in zip(names, sums, sums[len(names) :]):
        yield name, _mean(total, number)


def _mean(total: float, number: float) -> float:
    return total / number if number else math.nan


def perplexity(loss: float) -> float:
    """exp(loss), infinite where that is more than a float holds."""
    return math.exp(loss) if not loss > 700 else math.inf
