"""Define `SparseDictionary`, the base class of the variants of a sparse dictionary.

A dictionary of F features reads activations x [N, d]. It scales them, z = scale x, and computes pre-activations p = E (z - b) + c, from p
the sparse activities f >= 0, and the reconstruction (D^T f + b) / scale. The F decoder vectors, the rows of D [F, d], have norm 1: the
component along the vector is removed from their gradients, and they are normalised after every update. At the start E is parallel to D, and
b is the geometric median of the scaled activations (Bricken et al. 2023, "Towards Monosemanticity").

The loss of a sample has three parts: the squared error of the scaled reconstruction, summed over the d dimensions; the penalties of the
variant; and for dead features the auxiliary loss of Gao et al. 2024 (arXiv 2406.04093, A.2). All parts are sums over samples, so they do
not depend on how a global batch is divided.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linnaeus.data.samples import Batch
from linnaeus.distributed import DistributedContext
from linnaeus.errors import ConfigError
from linnaeus.workloads.base import Model
from linnaeus.workloads.dictionary.model.dictionary_losses import active_auxiliary_loss, auxiliary_loss, squared_error, usage_loss
from linnaeus.workloads.dictionary.model.sparse_pass import Active, Scratch, SparseEncode, weighted_sum
from linnaeus.workloads.dictionary.model.straight_through import OnSphere

USAGE_RATE = 0.01  # of the moving average of the usage, per update
WEISZFELD_STEPS = 100
CONVERGED = 1e-7  # of the norm of the median


class Reconstruction(NamedTuple):
    """Result of a forward pass over N samples.

    In training all fields come from `training_activities`. In evaluation the losses still come from `training_activities`, but
    `reconstruction`, `activities` and `active` come from `encode`. The two methods differ in BatchTopK and Matryoshka."""

    reconstruction: Tensor  # [N, d], in the units of the activations
    activities: Tensor | None  # [N, F], 0 for a feature that is not active; None in training through the active features only
    losses: dict[str, Tensor]  # [N] each, by name; their sum is the loss of a sample
    active: Tensor  # int64 [N], number of active features


class SparseDictionary(Model):
    """Abstract base class of a sparse dictionary. `model(batch)` returns a `Reconstruction`. The batch has `activation` [N, d], `weight`
    [N] and optionally `ramp` [N], the factor of the sparsity penalty."""

    scale: Tensor
    silent: Tensor
    usage: Tensor
    _fired: Tensor
    limited = False  # True if few features are active and an activity equals its pre-activation; then `sparse_pass` is used on the CPU
    folds: tuple[str, ...] = ("encoder_bias", "bias")  # parameters and buffers that are in units of the scaled activations

    def __init__(self, config: Any, width: int, features: int) -> None:
        super().__init__()
        self.config: Any = config
        self.width, self.features = width, features
        self.scratch = Scratch()
        self.encoder = nn.Parameter(torch.empty(features, width))
        self.encoder_bias = nn.Parameter(torch.empty(features))
        self.decoder = nn.Parameter(torch.empty(features, width))
        self.bias = nn.Parameter(torch.empty(width))
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("silent", torch.zeros(features, dtype=torch.int64))  # training samples since the feature was active
        self.register_buffer("usage", torch.full((features,), config.usage_target))
        # Counted since the last update; 0 between updates, so it is not saved.
        self.register_buffer("_fired", torch.zeros(features + 1, dtype=torch.int64), persistent=False)

    # -- what a variant defines ------------------------------------------------------------------------------------------------

    @abstractmethod
    def activities(self, pre: Tensor) -> Tensor:
        """Return the sparse activities [N, F] for pre-activations [N, F], as in evaluation."""

    def training_activities(self, pre: Tensor, weight: Tensor) -> Tensor:
        """Return the activities [N, F] from which the loss is computed, for pre-activations [N, F]. In BatchTopK and Matryoshka they depend
        on the other samples of the block. weight: [N], 0 for samples that are left out."""
        return self.activities(pre)

    def training_places(self, pre: Tensor, weight: Tensor) -> Active:
        """Return the indices of the activities that `training_activities` would not set to 0. It may update running statistics, such as a
        threshold. Called only in training, on the CPU, for variants with `limited` True. pre: pre-activations [N, F]. weight: [N], 0 for
        samples that do not count in the statistics; their indices may be returned."""
        raise NotImplementedError

    def penalties(self, pre: Tensor, activities: Tensor, scaled: Tensor, decoder: Tensor) -> dict[str, Tensor]:
        """Return {name: penalty of each sample [N]}, to add to the loss; {} for a variant without a penalty.
        The penalty `sparsity` is multiplied by the ramp of its coefficient. pre: pre-activations [N, F].
        activities: [N, F]. scaled: scaled activations [N, d]. decoder: [F, d]."""
        return {}

    # -- use -------------------------------------------------------------------------------------------------------------------

    def encode(self, activation: Tensor) -> Tensor:
        """Return the activities [N, F] of activations [N, d]."""
        return self.activities(self.pre_activations(activation * self.scale))

    def decode(self, activities: Tensor) -> Tensor:
        """Return the reconstructions [N, d], in the units of the activations, from activities [N, F]."""
        return (activities @ self.decoder + self.bias) / self.scale

    def pre_activations(self, scaled: Tensor) -> Tensor:
        return F.linear(scaled - self.bias, self.encoder, self.encoder_bias)

    def forward(self, batch: Batch) -> Reconstruction:
        weight = batch["weight"]
        scaled = batch["activation"].to(self.decoder.dtype) * self.scale
        if self.limited and self.training and scaled.device.type == "cpu" and not self.config.usage_penalty:
            return self._forward_active(scaled, weight)
        pre = self.pre_activations(scaled)
        activities = self.training_activities(pre, weight)
        decoder = OnSphere.apply(self.decoder)
        found, losses = self.reconstruct(activities, scaled, decoder)
        if self.training:
            self._count(activities, weight)
        losses |= self.penalties(pre, activities, scaled, decoder)
        if "sparsity" in losses:
            losses["sparsity"] = batch.get("ramp", weight) * losses["sparsity"]
        if self.config.usage_penalty and self.training:
            losses["usage"] = self.config.usage_penalty * usage_loss(pre, self.usage, self.config.usage_target)
        if self.config.auxiliary and self.training:
            losses["auxiliary"] = self.config.auxiliary * auxiliary_loss(scaled - found, decoder, pre, self.dead, self._most_dead())
        if self.training:
            return Reconstruction(found / self.scale, activities, losses, (activities > 0).sum(1))
        activities = self.activities(pre)
        return Reconstruction(self.decode(activities), activities, losses, (activities > 0).sum(1))

    def _forward_active(self, scaled: Tensor, weight: Tensor) -> Reconstruction:
        """Return the result of `forward` in training, computed through the active features only. The field `activities` is None. scaled:
        scaled activations [N, d]. weight: [N], 0 for samples that are left out."""
        with torch.no_grad():
            x = scaled - self.bias
            pre = self.scratch.linear(x, self.encoder, self.encoder_bias)
            active = self.training_places(pre, weight)
        decoder = OnSphere.apply(self.decoder)
        real = weight > 0
        every = bool(real.all())
        self._fired[:-1] += active.per_feature() if every else torch.bincount(active.feature[real[active.sample]], minlength=self.features)
        self._fired[-1] += real.sum()
        values = SparseEncode.apply(x, self.bias, self.encoder, self.encoder_bias, pre, active)
        found, losses = self.reconstruct_active(active, values, scaled, decoder)
        if self.config.auxiliary:
            error, encoder = scaled - found, (self.bias, self.encoder, self.encoder_bias)
            of_dead = active_auxiliary_loss(error, decoder, pre, self.dead, self._most_dead(), x, encoder)
            losses["auxiliary"] = self.config.auxiliary * of_dead
        return Reconstruction(found / self.scale, None, losses, active.per_sample())

    def reconstruct_active(self, active: Active, values: Tensor, scaled: Tensor, decoder: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return (scaled reconstruction [N, d], {name: loss [N]}), like `reconstruct`, from the active features only. active: indices of
        the P activities that are not 0. values: [P], these activities. scaled: scaled activations [N, d]. decoder: [F, d]."""
        found = weighted_sum(active, values, decoder) + self.bias
        return found, {"reconstruction": squared_error(scaled, found)}

    def reconstruct(self, activities: Tensor, scaled: Tensor, decoder: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return (scaled reconstruction [N, d], {"reconstruction": squared error of each sample [N]}); a subclass may add losses.
        activities: [N, F]. scaled: scaled activations [N, d]. decoder: [F, d]."""
        found = (activities @ decoder + self.bias).to(scaled.dtype)
        return found, {"reconstruction": squared_error(scaled, found)}

    # -- training --------------------------------------------------------------------------------------------------------------

    def init_weights(self) -> None:
        """Initialise every parameter, with torch's default generator."""
        with torch.no_grad():
            nn.init.normal_(self.decoder)
            self.decoder.div_(self.decoder.norm(dim=1, keepdim=True))
            self.encoder.copy_(self.decoder * self.config.encoder_norm)
            self.encoder_bias.zero_()
            self.bias.zero_()

    @torch.no_grad()
    def fit_scale(self, sample: Tensor) -> None:
        """Fit the scale and the bias to a sample of activations [N, d]. Raise `ConfigError` for an empty sample.

        The bias becomes the geometric median of the scaled activations. The scale makes the mean distance of the scaled activations from
        the bias sqrt(d); if all activations are equal, the scale is 1. The mean norm is not used: for activations far from the origin it
        says nothing about the deviations, which the features explain."""
        if not len(sample):
            raise ConfigError("data: no activation counts in the blocks from which the scale is estimated; the samples cannot be decoded")
        median = geometric_median(sample.double())
        distance = float((sample.double() - median).norm(dim=1).mean())
        self.scale.fill_(self.width**0.5 / distance if distance > 0 else 1.0)
        self.bias.copy_(median * self.scale)

    @torch.no_grad()
    def copy_scale(self, other: SparseDictionary) -> None:
        """Copy the scale and the bias of `other`, a dictionary that `fit_scale` has fitted to the same activations."""
        self.scale.copy_(other.scale)
        self.bias.copy_(other.bias)

    @property
    def dead(self) -> Tensor:
        """Return bool [F], True for a feature that was not active in the last `dead_after` training samples."""
        return self.silent >= self.config.dead_after

    @torch.no_grad()
    def after_update(self, skipped: Tensor) -> None:
        """Normalise the decoder vectors. Update `silent`, the samples since each feature was active, and `usage`, a moving average of the
        share of samples in which it is active, from the counts of all processes since the last update.

        skipped: above 0 if the optimizer skipped the update; then only reset the counts."""
        norm = self.decoder.norm(dim=1, keepdim=True)
        self.decoder.div_(torch.where(skipped > 0, torch.ones_like(norm), norm))
        counts = DistributedContext().all_reduce(self._fired)
        fired, samples = counts[:-1], counts[-1]
        applied = (skipped == 0) & (samples > 0)
        self.silent.copy_(torch.where(applied, torch.where(fired > 0, 0, self.silent + samples), self.silent))
        rate = torch.where(applied, USAGE_RATE, 0.0)
        self.usage.lerp_((fired / samples.clamp(min=1)).to(self.usage.dtype), rate.to(self.usage.dtype))
        self._fired.zero_()

    @torch.no_grad()
    def _count(self, activities: Tensor, weight: Tensor) -> None:
        real = weight > 0
        self._fired[:-1] += ((activities > 0) & real.unsqueeze(1)).sum(0)
        self._fired[-1] += real.sum()

    def _most_dead(self) -> int:
        """Return the largest number of dead features that the auxiliary loss uses for a sample."""
        return self.config.auxiliary_features or max(self.width // 2, 1)

    # -- form ------------------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def folded(self) -> SparseDictionary:
        """Return a copy with scale 1 and equal reconstructions. Its activities are the activities of this dictionary divided by the
        scale."""
        found = copy.deepcopy(self)
        for name in self.folds:
            tensor = getattr(found, name)
            tensor.div_(self.scale)
        found.scale.fill_(1)
        return found

    def shared_parameters(self) -> list[nn.Parameter]:
        return [self.decoder, self.bias]

    @property
    def no_decay(self) -> set[str]:
        """Return the names of all parameters: none has weight decay, which would shrink the activities."""
        return {name for name, _ in self.named_parameters()}

    def flops_per_sample(self) -> float:
        """Return 10 F d operations: 2 per weight in each of 5 matrix products. Two products are in the forward pass, two are gradients of
        the matrices, and one is the gradient of the activities."""
        return 2.0 * 5 * self.features * self.width


def geometric_median(points: Tensor) -> Tensor:
    """Return the geometric median [d] of `points` [N, d]: the point with the smallest sum of distances to them, by Weiszfeld's algorithm
    (1937)."""
    median = points.mean(0)
    for _ in range(WEISZFELD_STEPS):
        closeness = 1 / (points - median).norm(dim=1).clamp(min=1e-8)
        new = closeness @ points / closeness.sum()
        moved, median = float((new - median).norm()), new
        if moved <= CONVERGED * float(median.norm()):
            break
    return median
