"""Hierarchical softmax with routing: what is believed of the coarser rank is handed down to the finer one.

As in the conditional head every taxon is a softmax among its siblings, multiplied down the tree. Before a level is scored, each taxon of
the rank above adds an embedding of itself to the feature, weighted by the routing distribution r over that rank, p its log-probabilities:

    soft     r = softmax(p / temperature)
    hard     r = the most probable taxon alone; its gradient is that of soft (straight through, Bengio et al. 2013)
    gumbel   r = softmax((p + g) / temperature), g Gumbel noise (Jang et al. 2017); soft where it does not train

Routing changes the features only: the probabilities reported stay products of conditionals, so they obey the tree. With hard
routing the prediction is made the same way, the best child at a time.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from linnaeus.workloads.taxonomy.heads.base import INIT_STD
from linnaeus.workloads.taxonomy.heads.siblings import ConditionalHead, SiblingScores
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


class HierarchicalSoftmaxHead(ConditionalHead):
    def __init__(self, width: int, tree: TaxonomyTree, null: bool = False, *, routing: str, temperature: float) -> None:
        super().__init__(width, tree, null)
        self.routing, self.temperature = routing, temperature
        self.embeddings = nn.ParameterList(nn.Parameter(torch.empty(size, width)) for size in tree.sizes[:-1])

    def init_weights(self) -> None:
        super().init_weights()
        for embedding in self.embeddings:
            nn.init.trunc_normal_(embedding, std=INIT_STD)

    def forward(self, features: Tensor) -> SiblingScores:
        logits: list[Tensor] = []
        scores = SiblingScores(self.layout, logits, greedy=self.routing == "hard")
        for number, (layer, feature) in enumerate(zip(self.levels, features.unbind(1), strict=True)):
            if number:
                feature = feature + self._handed_down(scores.rank_log_probs(number - 1), self.embeddings[number - 1].to(feature.dtype))
            logits.append(layer(feature))
        return scores

    def _handed_down(self, log_probs: Tensor, embedding: Tensor) -> Tensor:
        """[B, D]: the embeddings [C, D] of the classes of a rank, weighted by the routing distribution of its log_probs [C, B]."""
        if self.routing == "hard":
            soft = F.softmax(log_probs / self.temperature, 0)
            return cast(Tensor, _StraightThrough.apply(soft.to(embedding.dtype), log_probs.argmax(0), embedding))
        return self._route(log_probs).to(embedding.dtype).t() @ embedding

    def _route(self, log_probs: Tensor) -> Tensor:
        """[C, B]: the routing distribution over the classes of a rank, soft or with noise."""
        if self.routing == "gumbel" and self.training:
            tiny = torch.finfo(log_probs.dtype).tiny  # a draw of exactly 0 would be infinite noise
            noise = torch.rand_like(log_probs).clamp_(min=tiny).log_().neg_().log_()  # a fifth of the time of `exponential_`
            return F.softmax((log_probs - noise) / self.temperature, 0)
        return F.softmax(log_probs / self.temperature, 0)


class _StraightThrough(torch.autograd.Function):
    """[B, D]: of embeddings [C, D] those of `best` int64 [B]; with the gradient by `soft` [C, B] of the mean weighted by it. A product
    of [C, B] and [C, D] fewer forward and backward than with a one-hot matrix."""

    @staticmethod
    def forward(ctx: Any, soft: Tensor, best: Tensor, embedding: Tensor) -> Tensor:
        ctx.save_for_backward(best, embedding)
        return embedding.index_select(0, best)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        best, embedding = ctx.saved_tensors
        return embedding @ grads[0].t(), None, torch.zeros_like(embedding).index_add_(0, best, grads[0])
