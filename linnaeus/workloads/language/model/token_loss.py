"""Cross-entropy of every token, with as few copies of the scores [N, V] as there can be.

At a vocabulary of 50,304 the scores are the largest tensor of a training step. In float32 torch's own loss keeps one copy until backward,
which is all it takes. In bf16 or fp16 the loss is still computed in float32, and torch keeps a float32 copy of the scores besides
them: 10 bytes a score at the worst moment. Here the 2-byte scores themselves are kept, with one number a row (the log of
the sum of exponentials), and float32 exists for a few rows at a time: 4 bytes. A compiler fuses the plain expression to the same effect,
so it is given that.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -1  # a target that is none: loss 0 and no gradient
CHUNK = 2**24  # scores turned into float32 at once, 64 MiB


def token_losses(scores: Tensor, target: Tensor) -> Tensor:
    """-log softmax(scores)[target] of scores [..., V] and int64 target [...], 0 where the target is `IGNORED`; float32, float64
    for float64 scores."""
    shape, scores, target = target.shape, scores.flatten(0, -2), target.flatten()
    if scores.dtype in (torch.float32, torch.float64) or torch.compiler.is_compiling():
        wide = scores if scores.dtype == torch.float64 else scores.float()
        return F.cross_entropy(wide, target, reduction="none", ignore_index=IGNORED).view(shape)
    return _NarrowLoss.apply(scores, target).view(shape)


class _NarrowLoss(torch.autograd.Function):
    """The loss of rows of bf16 or fp16 scores, in float32 arithmetic."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, target: Tensor) -> Tensor:
        total = torch.cat([part.float().logsumexp(1) for part in scores.split(_rows(scores))])
        ctx.save_for_backward(scores, target, total)
        right = scores.gather(1, target.clamp(min=0)[:, None])[:, 0]
        return (total - right) * (target != IGNORED)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """softmax(scores) - one-hot(target), times the gradient of the row."""
        scores, target, total = ctx.saved_tensors
        gradient, rows = torch.empty_like(scores), _rows(scores)
        weight = gradients[0] * (target != IGNORED)
        for part, right, norm, factor, out in zip(*(each.split(rows) for each in (scores, target, total, weight, gradient))):
            share = (part.float() - norm[:, None]).exp_()
            share.scatter_add_(1, right.clamp(min=0)[:, None], share.new_full((len(share), 1), -1.0))
            out.copy_(share.mul_(factor[:, None]))
        return gradient, None


def _rows(scores: Tensor) -> int:
    return max(1, CHUNK // scores.shape[1])
