"""Compute the cross-entropy of every token with as few copies of the logits [N, V] as possible.

At a vocabulary of 50,304 the logits are the largest tensor of a training step. For float32 logits, torch's loss keeps one copy until
backward. For bf16 or fp16 logits, the loss must still be computed in float32, and torch keeps a float32 copy in addition to the logits: at
most 10 bytes per logit. `_HalfPrecisionLoss` keeps the 2-byte logits and one number per row (the log of the sum of exponentials), and
converts a few rows at a time to float32: 4 bytes per logit. A compiler fuses torch's loss to the same effect, so compiled models use
torch's loss."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -1  # a missing target: its loss and gradient are 0
CHUNK = 2**24  # logits converted to float32 at once, 64 MiB


def token_losses(logits: Tensor, target: Tensor) -> Tensor:
    """Return -log softmax(logits)[target] for each target, 0 where the target is `IGNORED`. `logits`: [..., V]. `target`: int64 [...]. The
    result is float32, or float64 for float64 logits, in the shape of `target`."""
    shape, logits, target = target.shape, logits.flatten(0, -2), target.flatten()
    if logits.dtype in (torch.float32, torch.float64) or torch.compiler.is_compiling():
        wide = logits if logits.dtype == torch.float64 else logits.float()
        return F.cross_entropy(wide, target, reduction="none", ignore_index=IGNORED).view(shape)
    return _HalfPrecisionLoss.apply(logits, target).view(shape)


class _HalfPrecisionLoss(torch.autograd.Function):
    """Autograd function: the loss of each row of bf16 or fp16 logits, computed in float32."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor) -> Tensor:
        log_sum = torch.cat([part.float().logsumexp(1) for part in logits.split(_rows(logits))])
        ctx.save_for_backward(logits, target, log_sum)
        correct = logits.gather(1, target.clamp(min=0)[:, None])[:, 0]
        return (log_sum - correct) * (target != IGNORED)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the gradient with respect to the logits: (softmax(logits) - one-hot(target)) times the gradient of the row's loss."""
        logits, target, log_sum = ctx.saved_tensors
        gradient, rows = torch.empty_like(logits), _rows(logits)
        factor = gradients[0] * (target != IGNORED)
        for part, correct, norm, scale, out in zip(*(each.split(rows) for each in (logits, target, log_sum, factor, gradient))):
            share = (part.float() - norm[:, None]).exp_()
            share.scatter_add_(1, correct.clamp(min=0)[:, None], share.new_full((len(share), 1), -1.0))
            out.copy_(share.mul_(scale[:, None]))
        return gradient, None


def _rows(logits: Tensor) -> int:
    return max(1, CHUNK // logits.shape[1])
