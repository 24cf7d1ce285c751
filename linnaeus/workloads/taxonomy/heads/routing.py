"""Define the conditional head with routing.

Before a level is scored, a weighted mean of the embeddings of the taxa of the rank above is added to the feature. The weights are the
routing distribution r over these taxa. With p the log-probabilities of these taxa,

    soft     r = softmax(p / temperature)
    hard     r = one-hot of the most probable taxon, with the gradient of soft (straight through, Bengio et al. 2013)
    gumbel   r = softmax((p + g) / temperature), g Gumbel noise (Jang et al. 2017); soft in evaluation

Routing changes features only: the reported probabilities remain products of conditionals, so they obey the tree. With hard routing the
predicted path is greedy, too: the most probable child at each level."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from linnaeus.workloads.taxonomy.heads.conditional import ConditionalHead, SiblingScores
from linnaeus.workloads.taxonomy.heads.head import INIT_STD
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


class HierarchicalSoftmaxHead(ConditionalHead):
    """Conditional head with routing: before a level is scored, a weighted mean of the embeddings of the taxa of the rank above is added to
    the feature of the level (see module)."""

    def __init__(self, width: int, tree: TaxonomyTree, null: bool = False, *, routing: str, temperature: float) -> None:
        """`routing`: soft, hard or gumbel. `temperature`: temperature of the routing distribution, above 0."""
        super().__init__(width, tree, null)
        self.routing, self.temperature = routing, temperature
        finer = self.layout.level_sizes[1:]
        self.embeddings = nn.ParameterDict({str(r): torch.empty(tree.sizes[r], width) for r, size in enumerate(finer) if size})

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
                feature = feature + self._routed_embedding(scores.rank_log_probs(level - 1), embedding)
            logits.append(self._level_logits(level, feature))
        return scores

    def _routed_embedding(self, log_probs: Tensor, embedding: Tensor) -> Tensor:
        """Return the mean [B, D] of the embeddings [C, D] of a rank, weighted by the routing distribution (see module). `log_probs`:
        log-probabilities of the classes of this rank, [C, B]."""
        best = log_probs.argmax(0) if self.routing == "hard" else None
        if self.routing == "gumbel" and self.training:
            tiny = torch.finfo(log_probs.dtype).tiny  # a draw of exactly 0 would be infinite noise
            # Minus Gumbel noise, in a fifth of the time of `exponential_`.
            log_probs = log_probs - torch.rand_like(log_probs).clamp_(min=tiny).log_().neg_().log_()
        return cast(Tensor, _WeightedMean.apply(log_probs, embedding, self.temperature, best))


class _WeightedMean(torch.autograd.Function):
    """Autograd function: the mean [B, D] of embeddings [C, D] with weights softmax(raw / temperature), raw [C, B]. With `best`, int64 [B],
    the result is the embedding of each sample's class `best`; the gradient by `raw` is still computed for the mean (straight through).

    Softmax and product are differentiated together, as in attention: with p the weights and g the gradient by the mean m, the gradient by
    raw_c / temperature is p_c (g . embedding_c - g . m). The weights are saved before the division by their sum; dividing the product [B,
    D] instead costs less than dividing [C, B]."""

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
