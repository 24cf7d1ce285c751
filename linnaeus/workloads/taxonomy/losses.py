"""Losses of the taxonomic ranks: sums over valid labels, to be divided by the valid labels of the whole global batch.

A mixed sample has two labels per rank, `label` with weight `share` and `label2` with the rest, so that no target is ever
[B, C]. A null label (-1) contributes nothing to the loss and nothing to the denominator; nor does a stand-in sample
(weight 0). What the loop divides by is `valid_counts`, computed on the host before the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from linnaeus.workloads.base import Batch
from linnaeus.workloads.taxonomy.config import LossConfig


def cross_entropy(logits: Tensor, label: Tensor, label2: Tensor | None, share: Tensor | None, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy [B] of logits [B, C] with one label, or two of weights share and 1 - share (int64 [B], -1 null).

    Label smoothing (Szegedy et al. 2016) spreads `smoothing` of each valid label evenly over the classes. Computed in
    float32 at least; a sample without a valid label has loss exactly 0 and gradient exactly 0."""
    log_p = F.log_softmax(logits, 1, dtype=torch.promote_types(logits.dtype, torch.float32))
    loss = F.nll_loss(log_p, label, ignore_index=-1, reduction="none")
    if label2 is not None:
        assert share is not None, "a second label comes with a share"
        share = share.to(loss.dtype)
        loss = share * loss + (1 - share) * F.nll_loss(log_p, label2, ignore_index=-1, reduction="none")
    if smoothing > 0:
        valid = _valid_share(label, label2, share).to(loss.dtype)
        loss = (1 - smoothing) * loss - smoothing * valid * log_p.mean(1)
    return loss


LOSSES: dict[str, Callable[..., Tensor]] = {"cross_entropy": cross_entropy}


def loss_sums(outputs: dict, batch: Batch, config: LossConfig) -> Tensor:
    """[R]: each rank's loss summed over the valid labels of a prepared batch. Also left, detached, in
    `outputs["loss_sums"]`, so that the training metrics need not compute it again."""
    sums = rank_loss_sums(outputs["logits"], batch, LOSSES[config.name], config.label_smoothing)
    outputs["loss_sums"] = sums.detach()
    return sums


def rank_loss_sums(logits: Sequence[Tensor], batch: Batch, loss: Callable[..., Tensor], smoothing: float) -> Tensor:
    """[R] sums over the batch of `weight` x loss. No matrix product: autocast would round the sum to bf16."""
    label, label2, share = batch["label"], batch.get("label2"), batch.get("share")
    losses = [loss(z, label[:, r], None if label2 is None else label2[:, r], share, smoothing) for r, z in enumerate(logits)]
    return (torch.stack(losses) * batch["weight"].to(losses[0].dtype)).sum(1)


def valid_counts(batch: Batch) -> Tensor:
    """float64 [R]: the weight of the valid labels of each rank, where the batch lies."""
    valid = _valid_share(batch["label"], batch.get("label2"), batch.get("share"))
    return (valid.double() * batch["weight"].double().unsqueeze(1)).sum(0)


def _valid_share(label: Tensor, label2: Tensor | None, share: Tensor | None) -> Tensor:
    """Weight of the valid labels of each sample, of the shape of `label` ([B] or [B, R]); bool where nothing is mixed."""
    if label2 is None:
        return label >= 0
    assert share is not None, "a second label comes with a share"
    share = share.double() if label.dim() == 1 else share.double().unsqueeze(1)
    return share * (label >= 0) + (1 - share) * (label2 >= 0)


def weighted_hierarchical_loss(sums: Tensor, weights: Tensor, denominators: Tensor) -> Tensor:
    """The loss of a micro-batch: sum over ranks of weight x sum / denominator, all [R]. The denominators are the valid
    counts of the whole *global* batch, so that losses of micro-batches add up to the loss of the global batch; a rank
    without any valid label has sum 0 and adds 0."""
    safe = torch.where(denominators > 0, denominators, torch.ones_like(denominators))
    return (sums * (weights / safe).to(sums.dtype)).sum()
