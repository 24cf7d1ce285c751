"""The second moment of weights that have just been connected, so that their first steps are no larger than anyone's.

AdamW divides by the root of a mean square that it corrects for having begun at 0 by the number of updates of the whole tensor. For a
weight that joins at update t its own mean square begins at 0 as well, uncorrected: its first step would be (1 - beta1) / sqrt(1 - beta2)
times the learning rate, 3.2 with the usual 0.9 and 0.999. So v is seeded before that update with the larger of

    g^2 (1 - beta2^(t-1))   then v / (1 - beta2^t) is g^2 after the update and the first step at most the learning rate, whatever the betas;
    the mean v of the weights of this tensor that were connected before   since a first gradient may be small by chance, and the
                            next one must not meet an empty v either.

The first moment begins at 0, which only makes steps shorter. SGD needs none of this: its momentum of a new weight has fewer terms than
anyone's, and without momentum a step is the gradient's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from linnaeus.optim.optimizers import Optimizers


class NewConnections(NamedTuple):
    """Weights of one parameter that are connected in this update."""

    place: int  # of the parameter among those of the optimizers
    entries: Tensor  # bool, of its shape
    before: int  # how many were connected already


@torch.no_grad()
def seed_second_moments(
    optimizers: Optimizers, new: Sequence[NewConnections], grads: Sequence[Tensor | None], divisor: Tensor | None, found_inf: Tensor
) -> None:
    """To be called before the step that uses `grads`, which it will divide by `divisor`. Where `found_inf` is 1 the gradients say
    nothing, and the other weights alone do."""
    for newcomers in new:
        member, kept = optimizers.keeper(newcomers.place)
        if member.beta2 is None:
            continue
        second, grad = kept["exp_avg_sq"], grads[newcomers.place]
        seed = (second.sum() / max(1, newcomers.before)).expand_as(second)  # v is 0 where nothing was connected
        if grad is not None:
            square = (grad if divisor is None else grad / divisor) ** 2 * (1 - member.beta2 ** kept["step"])
            seed = torch.maximum(seed, torch.where(found_inf > 0, 0.0, square))
        second.copy_(torch.where(newcomers.entries, seed, second))
