"""Metrics of next-token prediction: `loss` in nats per token, `perplexity`, `bits_per_byte`, and in validation `top1`.

Bits per byte divide the loss by the bytes of UTF-8 that the predicted tokens stand for, so texts cut into different tokens compare. The
end marker stands for no byte, and its loss counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from linnaeus.workloads.base import Batch
from linnaeus.workloads.language.model.token_loss import IGNORED

Outputs = Mapping[str, Tensor]


class LanguageMetrics:
    """Implements `base.Metrics`. In training the loop adds up the losses itself, and there is no `top1`: to look for the best of 50,257
    scores takes 1 % of a step."""

    width = 2

    def __init__(self, training: bool, lengths: np.ndarray | None, device: torch.device) -> None:
        """`lengths` int64 [V]: bytes of each token; None: not known, and bits per byte are NaN."""
        self.training = training
        self._lengths = torch.as_tensor(lengths, device=device) if lengths is not None else None
        self.counts = {"bytes": torch.zeros((), dtype=torch.int64, device=device)}
        if not training:
            self.counts["right"] = torch.zeros_like(self.counts["bytes"])

    def sums(self, outputs: Outputs, batch: Batch) -> Tensor:
        """float64 [2]: losses, and how many."""
        return torch.stack([outputs["losses"].double().sum(), (batch["target"] != IGNORED).sum().double()])

    def count(self, outputs: Outputs, batch: Batch) -> None:
        target = batch["target"]
        if not self.training:
            self.counts["right"] += (outputs["best"] == target).sum()  # no token is IGNORED
        if self._lengths is not None:
            self.counts["bytes"] += (self._lengths[target.clamp(min=0)] * (target != IGNORED)).sum()

    def compute(self, sums: Tensor, counts: Mapping[str, Tensor]) -> dict[str, float]:
        losses, targets = sums.tolist()
        loss, size = losses / targets if targets else math.nan, int(counts["bytes"])
        found = {"loss": loss, "perplexity": perplexity(loss), "bits_per_byte": losses / math.log(2) / size if size else math.nan}
        return found if self.training else found | {"top1": int(counts["right"]) / targets if targets else math.nan}


def perplexity(loss: float) -> float:
    """exp(loss), infinite where that is more than a float holds."""
    return math.exp(loss) if not loss > 700 else math.inf
