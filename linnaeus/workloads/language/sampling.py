"""Sample a token from logits: temperature, top-k, top-p, then inversion of the distribution function at one uniform number.

Everything is float64 and in the order of the vocabulary, so rounding errors of the logits move the bounds between tokens no more than
those errors themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from linnaeus.errors import ConfigError


@dataclass(frozen=True)
class Sampling:
    """`temperature` divides the logits; 0 selects the most probable token. `top_k` keeps the k most probable tokens. `top_p` keeps the
    fewest most probable tokens whose probabilities, after both, sum to at least p. None: keep all."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"temperature is {self.temperature:g}; it must be 0, for the most probable token, or a positive number")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k is {self.top_k}; it must be at least 1, or omitted to keep all tokens")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p:g}; it must be above 0 and at most 1")


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return the probabilities, float64 [B, V] with rows that sum to 1, from logits [B, V]. The temperature must not be 0."""
    logits = logits.double()
    logits = (logits - logits.amax(1, keepdim=True)) / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < logits.shape[1]:
        best = logits.topk(sampling.top_k, dim=1).indices
        logits = torch.full_like(logits, -torch.inf).scatter(1, best, logits.gather(1, best))
    probability = logits.softmax(1)
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered, order = probability.sort(dim=1, descending=True, stable=True)
        before = torch.cat([torch.zeros_like(ordered[:, :1]), ordered.cumsum(1)[:, :-1]], 1)
        probability = torch.zeros_like(probability).scatter(1, order, ordered * (before < sampling.top_p))
        probability = probability / probability.sum(1, keepdim=True)
    return probability


def draw(logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Tensor:
    """Return a token for each row of logits [B, V], int64 [B], by inverting the distribution function at `uniforms`, float64 [B] in
    [0, 1)."""
    if sampling.temperature == 0:
        return logits.argmax(1)
    cumulative = probabilities(logits, sampling).cumsum(1)
    total = cumulative[:, -1:]
    target = torch.minimum(uniforms[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target, right=True)[:, 0]
