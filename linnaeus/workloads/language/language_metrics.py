"""Metrics of next-token prediction: `loss` in nats per token, `perplexity`, `bits_per_byte`, and in validation `top1`.

`bits_per_byte` is the loss in bits divided by the UTF-8 bytes of the predicted tokens, so that different tokenizers compare. The end marker
has no bytes, but its loss counts.

With named sources, validation adds `source/NAME/loss`, the loss of that source's tokens. With dimensions in the model, validation adds
`dimension/NAME/score`: the loss in nats per token without that dimension, minus the loss with it, over the windows that were also
computed without it (every D-th window).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from linnaeus.data.samples import Batch
from linnaeus.metrics.streaming import Metrics
from linnaeus.workloads.language.model.dimensions import ablation_mask
from linnaeus.workloads.language.model.token_loss import IGNORED

Outputs = Mapping[str, Tensor]


class LanguageMetrics(Metrics):
    """The metrics of training rows or of one validation pass. In training the loop sums the losses itself, and `top1` is not
    computed: the argmax over 50,257 logits costs 1 % of a step."""

    def __init__(
        self,
        training: bool,
        byte_lengths: np.ndarray | None,
        device: torch.device,
        dimensions: Sequence[str] = (),
        sources: Sequence[str] = (),
    ) -> None:
        """`byte_lengths` int64 [V]: bytes of each token; None: unknown, bits per byte are NaN. `dimensions`: the D names in the model.
        `sources`: the S names in the text."""
        self.training = training
        self.dimensions, self.sources = ((), ()) if training else (tuple(dimensions), tuple(sources))
        self.width = 2 + 2 * len(self.sources) + 2 * len(self.dimensions)
        self._byte_lengths = torch.as_tensor(byte_lengths, device=device) if byte_lengths is not None else None
        self.counts = {"bytes": torch.zeros((), dtype=torch.int64, device=device)}
        if not training:
            self.counts["correct"] = torch.zeros_like(self.counts["bytes"])

    def sums(self, outputs: Outputs, batch: Batch) -> Tensor:
        """Return float64 [2 + 2 S + 2 D]: sum and number of losses; sums per source, numbers per source; sums of the loss increase
        without each dimension, numbers of tokens of these."""
        losses, known = outputs["losses"].double(), (batch["target"] != IGNORED).double()
        parts = [torch.stack([losses.sum(), known.sum()])]
        if self.sources:
            member = (batch["source"][:, None] == torch.arange(len(self.sources), device=losses.device)).double()
            parts += [(each.sum(1, keepdim=True) * member).sum(0) for each in (losses, known)]
        if self.dimensions:
            ablated = ablation_mask(batch["sample"], len(self.dimensions)).double()
            increase = outputs["ablated_losses"].double() - losses
            parts += [(each.sum(1, keepdim=True) * ablated).sum(0) for each in (increase, known)]
        return torch.cat(parts)

    def count(self, outputs: Outputs, batch: Batch) -> None:
        target = batch["target"]
        if not self.training:
            self.counts["correct"] += (outputs["predictions"] == target).sum()  # no prediction equals IGNORED
        if self._byte_lengths is not None:
            self.counts["bytes"] += (self._byte_lengths[target.clamp(min=0)] * (target != IGNORED)).sum()

    def compute(self, sums: Tensor, counts: Mapping[str, Tensor]) -> dict[str, float]:
        losses, targets, *more = sums.tolist()
        loss, size = _mean(losses, targets), int(counts["bytes"])
        results = {"loss": loss, "perplexity": perplexity(loss), "bits_per_byte": _mean(losses / math.log(2), size)}
        if self.training:
            return results
        results["top1"] = _mean(int(counts["correct"]), targets)
        by_source, by_dimension = more[: 2 * len(self.sources)], more[2 * len(self.sources) :]
        results |= {f"source/{name}/loss": mean for name, mean in _means(self.sources, by_source)}
        return results | {f"dimension/{name}/score": mean for name, mean in _means(self.dimensions, by_dimension)}


def _means(names: Sequence[str], sums: Sequence[float]) -> Iterator[tuple[str, float]]:
    """Yield (name, mean). `sums` has the total of each name, followed by the number of each name."""
    for name, total, number in zip(names, sums, sums[len(names) :]):
        yield name, _mean(total, number)


def _mean(total: float, number: float) -> float:
    return total / number if number else math.nan


def perplexity(loss: float) -> float:
    """Return exp(loss), or infinity if that overflows a float."""
    return math.exp(loss) if not loss > 700 else math.inf
