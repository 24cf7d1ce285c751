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
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from linnaeus.workloads.taxonomy.heads.base import INIT_STD
from linnaeus.workloads.taxonomy.heads.siblings import ConditionalHead, SiblingScores
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


class HierarchicalSoftmaxHead(ConditionalHead):
    def __init__(self, width: int, tree: TaxonomyTree, null: bool = False, *, routing: str, temperature: float) -> None:
        super().__init__(width, tree, null)
        self.routing, self.temperature = routing, temperature
        below = self.layout.level_sizes[1:]
        self.embeddings = nn.ParameterDict({str(r): torch.empty(tree.sizes[r], width) for r, size in enumerate(below) if size})

    def init_weights(self) -> None:
        super().init_weights()
        for embedding in self.embeddings.values():
            nn.init.trunc_normal_(embedding, std=INIT_STD)

    def forward(self, features: Tensor) -> SiblingScores:
        logits: list[Tensor] = []
        scores = SiblingScores(self.layout, logits, greedy=self.routing == "hard")
        for level, feature in enumerate(features.unbind(1)):
            if level and self.layout.level_sizes[level]:
                embedding = self.embeddings[str(level - 1)].to(feature.dtype)
                feature = feature + self._handed_down(scores.rank_log_probs(level - 1), embedding)
            logits.append(self._raw(level, feature))
        return scores

    def _handed_down(self, log_probs: Tensor, embedding: Tensor) -> Tensor:
        """[B, D]: the embeddings [C, D] of the classes of a rank, weighted by the routing distribution of its log_probs [C, B]."""
        raw = log_probs - self._gumbel(log_probs) if self.routing == "gumbel" and self.training else log_probs
        best = log_probs.argmax(0) if self.routing == "hard" else None
        return cast(Tensor, _Mean.apply(raw, embedding, self.temperature, best))

    @staticmethod
    def _gumbel(like: Tensor) -> Tensor:
        """Minus Gumbel noise, in a fifth of the time of `exponential_`."""
        tiny = torch.finfo(like.dtype).tiny  # a draw of exactly 0 would be infinite noise
        return torch.rand_like(like).clamp_(min=tiny).log_().neg_().log_()


class _Mean(torch.autograd.Function):
    """[B, D]: the mean of embeddings [C, D] weighted by p = softmax(raw / temperature), raw [C, B]; or, given `best` int64 [B], those of
    the best classes, with the gradient by `raw` of the mean (straight through).

    As in attention, softmax and product are differentiated together: with g the gradient of the mean m, that by raw_c / temperature
    is p_c (g . embedding_c - g . m). The weights are kept and multiplied without their sum, which divides [B, D] instead of [C, B]."""

    @staticmethod
    def forward(ctx: Any, raw: Tensor, embedding: Tensor, temperature: float, best: Tensor | None) -> Tensor:
        weight = torch.sub(raw, raw.amax(0))
        weight = (weight if temperature == 1 else weight.div_(temperature)).exp_()
        total = weight.sum(0).unsqueeze(1)
        narrow = weight.to(embedding.dtype)
        found = (narrow.t() @ embedding / total).to(embedding.dtype) if best is None else embedding.index_select(0, best)
        ctx.temperature = temperature
        ctx.save_for_backward(weight, total, embedding, best, found)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        weight, total, embedding, best, found = ctx.saved_tensors
        g = grads[0] / total
        narrow = g.to(embedding.dtype)
        by_weight = (embedding @ narrow.t()).to(weight.dtype)  # [C, B]
        if best is None:
            mean = (g * found).sum(1)
            by_embedding = weight.to(embedding.dtype) @ narrow
        else:
            mean = (weight * by_weight).sum(0) / total.squeeze(1)
            by_embedding = torch.zeros_like(embedding).index_add_(0, best, grads[0])
        return by_weight.sub_(mean).mul_(weight).div_(ctx.temperature), by_embedding, None, None
