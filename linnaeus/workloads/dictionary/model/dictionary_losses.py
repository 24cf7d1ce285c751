"""Losses of a sparse dictionary that all variants share: the squared error, the auxiliary loss of dead features, and the penalty on the
usage of features.

The auxiliary loss (Gao et al. 2024, arXiv 2406.04093, A.2) is the squared error of a reconstruction of the error of the dictionary by dead
features. For each sample the dead features with the largest pre-activations are used, up to a limit. If fewer features are dead, the loss
is reduced in proportion; if none is dead, it is 0.

A negative pre-activation is multiplied by `SLOPE`, so that it has a gradient, but hardly contributes. With a factor of 1, a matryoshka
dictionary had 0.03 lower MCC (see `recovery.py`) on planted features.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from linnaeus.workloads.dictionary.model.largest import largest_of_rows
from linnaeus.workloads.dictionary.model.sparse_pass import SparseEncode, active_places, weighted_sum

SLOPE = 0.01  # of negative activities in the auxiliary loss, so that a feature that is nowhere positive has a gradient


def squared_error(target: Tensor, found: Tensor) -> Tensor:
    """Return the squared error of each sample, summed over the d dimensions: [N], in the dtype of `target`. target, found: [N, d]."""
    return (target - found.to(target.dtype)).square().sum(1)


def auxiliary_loss(error: Tensor, decoder: Tensor, pre: Tensor, dead: Tensor, most: int) -> Tensor:
    """Return the auxiliary loss of dead features, [N].

    error: reconstruction error of the dictionary, [N, d]. decoder: [F, d]. pre: pre-activations [N, F]. dead: bool [F], True for a dead
    feature. most: largest number of dead features for a sample."""
    share = (dead.sum() / most).clamp(max=1)
    if error.device.type == "cpu":  # where nothing waits for the device, only the columns of dead features are computed
        columns = dead.nonzero().squeeze(1)
        if not len(columns):
            return torch.zeros_like(error[:, 0])
        decoder, dead, pre = decoder[columns], dead[columns], pre.index_select(1, columns)
    values, index = torch.where(dead, pre, -torch.inf).topk(min(most, pre.shape[1]), dim=1)
    values = F.leaky_relu(torch.where(values.isfinite(), values, 0), SLOPE)
    found = torch.zeros_like(pre).scatter(1, index, values) @ decoder
    return share * squared_error(error.detach(), found)


def active_auxiliary_loss(
    error: Tensor, decoder: Tensor, pre: Tensor, dead: Tensor, most: int, x: Tensor, encoder: tuple[Tensor, Tensor, Tensor]
) -> Tensor:
    """Return `auxiliary_loss`, [N], computed through the dead features that are used only, on the CPU.

    error, decoder, dead, most: as in `auxiliary_loss`. pre: pre-activations [N, F], without a graph. x: input of the encoder, [N, d].
    encoder: bias [d], encoder vectors [F, d] and encoder bias [F] of the dictionary."""
    columns = dead.nonzero().squeeze(1)
    if not len(columns):
        return torch.zeros_like(error[:, 0])
    feature = columns.expand(len(x), -1)
    if len(columns) > most:
        feature = columns[largest_of_rows(pre.index_select(1, columns), most)]
    places = feature + torch.arange(len(x)).unsqueeze(1) * len(decoder)
    active = active_places(places.view(-1), *pre.shape)
    values = F.leaky_relu(SparseEncode.apply(x, *encoder, pre, active), SLOPE)
    return min(len(columns) / most, 1) * squared_error(error.detach(), weighted_sum(active, values, decoder))


def usage_loss(pre: Tensor, usage: Tensor, target: float) -> Tensor:
    """Return the mean over the features of KL(target || usage), [N], an equal value for each sample.

    `usage` is a moving average, which has no gradient. As a substitute, the gradient of a sample is d KL / d usage times the gradient of
    sigmoid(`pre`), a smooth measure of activity. pre: pre-activations [N, F]. usage: share of samples in which each feature is active,
    [F]. target: share in which each feature should be active."""
    usage = usage.clamp(target / 100, 1 - (1 - target) / 100)
    divergence = target * (target / usage).log() + (1 - target) * ((1 - target) / (1 - usage)).log()
    slope = (1 - target) / (1 - usage) - target / usage
    smooth = (pre.sigmoid() * slope).mean(1)
    return divergence.mean() + smooth - smooth.detach()
