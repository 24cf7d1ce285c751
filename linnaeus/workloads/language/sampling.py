"""A token from scores: temperature, then the k likeliest, then the fewest that hold a share p, then a draw by one number.

In float64 and in the order of the vocabulary, so that a difference of rounding in the scores moves a boundary by as little and no more.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from linnaeus.errors import ConfigError


@dataclass(frozen=True)
class Sampling:
    """`temperature` divides the scores, 0 takes the best; `top_k` keeps the k best tokens; `top_p` keeps the fewest best ones
    whose probabilities, after both, sum to at least p. None: all are kept."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"temperature is {self.temperature:g}; it takes 0, for the likeliest token each time, or a number above")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k is {self.top_k}; it takes a number of tokens, at least 1, or nothing for all")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p:g}; it takes a share above 0 and up to 1")


def probabilities(scores: Tensor, sampling: Sampling) -> Tensor:
    """float64 [B, V], rows summing to 1, from scores [B, V]; the temperature is not 0."""
    scores = scores.double()
    scores = (scores - scores.amax(1, keepdim=True)) / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < scores.shape[1]:
        best = scores.topk(sampling.top_k, dim=1).indices
        scores = torch.full_like(scores, -torch.inf).scatter(1, best, scores.gather(1, best))
    share = scores.softmax(1)
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered, order = share.sort(dim=1, descending=True, stable=True)
        before = torch.cat([torch.zeros_like(ordered[:, :1]), ordered.cumsum(1)[:, :-1]], 1)
        share = torch.zeros_like(share).scatter(1, order, ordered * (before < sampling.top_p))
        share = share / share.sum(1, keepdim=True)
    return share


def draw(scores: Tensor, sampling: Sampling, numbers: Tensor) -> Tensor:
    """A token int64 [B] for each row of scores [B, V], by inverting the distribution function at float64 `numbers` [B] in [0, 1)."""
    if sampling.temperature == 0:
        return scores.argmax(1)
    reached = probabilities(scores, sampling).cumsum(1)
    total = reached[:, -1:]
    wanted = torch.minimum(numbers[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(reached, wanted, right=True)[:, 0]
