"""Compute the training loss of a run (`TaxonomyLoss`), the weights of labels, and the plain cross-entropy of validation.

The weight of a label is sample weight x share of a mixed sample x class weight, and 0 for a missing label. With `coarser_share` the
labels of a sample divide its weight: the finest known one has 1 - `coarser_share`, its coarser labels have the rest in equal parts. The
loss of a rank is the sum of weight x loss over its labels; its denominator is the sum of the weights. With `coarser_share` all ranks have
one denominator, the sum of the weights of all ranks.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from linnaeus.config.contracts import check_arguments, check_members, class_name, described
from linnaeus.config.registry import registered
from linnaeus.data.samples import Batch
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.heads import Priors, Scores
from linnaeus.workloads.taxonomy.heads.layout import Tables
from linnaeus.workloads.taxonomy.loss_config import ConditionalConfig, LossConfig
from linnaeus.workloads.taxonomy.losses.label_counts import LabelCounts, class_weights
from linnaeus.workloads.taxonomy.losses.smoothed_targets import SmoothedLoss, smoothed_losses
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


class TaxonomyLoss:
    """Training loss: its sums per rank (`sums`) and their denominators. Validation uses the function `rank_loss_sums` instead of this
    class."""

    def __init__(
        self, config: LossConfig, tree: TaxonomyTree, counts: LabelCounts, nulls: bool = False, dtype: torch.dtype = torch.float32
    ) -> None:
        """`counts`: training labels of each class. `nulls`: True if the head has a null class. `dtype`: type of the scores. Raise
        `ConfigError` for the settings that `check_loss_config` refuses."""
        check_loss_config(config, nulls)
        self.conditional = isinstance(config, ConditionalConfig)
        self.strength, self.nulls, self.dtype = config.logit_adjustment, nulls, dtype
        self._host = _LossTables(config, tree, counts, nulls)
        self._by_device: dict[torch.device, _LossTables] = {}
        self._losses = self._rank_losses

    def valid_counts(self, batch: Batch) -> Tensor:
        """Return the sum of label weights per rank in a host batch, float64 [R]."""
        return torch.stack([weight for _, weight in self._host.labels(batch)]).sum((0, 1))

    def denominators(self, valid: Tensor) -> Tensor:
        """Return the denominators of the loss, float64 [..., R]: `valid`, the label weights of each rank in the global batch.

        With `coarser_share` every entry is the sum over all ranks. So the losses of the ranks add up to a mean over samples; with
        `coarser_share` 0 to that of -log p(finest label)."""
        return valid.sum(-1, keepdim=True).expand_as(valid) if self._host.divided else valid

    def compile(self, device: torch.device) -> None:
        """Compile the loss for batches on `device`."""
        self._tables(device)  # the compiler cannot trace the copy
        self._losses = torch.compile(self._rank_losses, dynamic=False)

    def sums(self, outputs: dict[str, Any], batch: Batch) -> Tensor:
        """Return the sum of each rank's loss over the labels of a prepared batch, [R]. With `image_scores` in `outputs`, return the means
        of the sums of both scores.

        Also set `outputs["losses"]`: the sums as R scalars, for the gradient of a single rank."""
        losses = self._losses(outputs["scores"], batch)
        if "image_scores" in outputs:
            alone = self._losses(outputs["image_scores"], batch)
            losses = [(fused + image) / 2 for fused, image in zip(losses, alone, strict=True)]
        outputs["losses"] = losses
        return torch.stack(losses)

    def _rank_losses(self, scores: Scores, batch: Batch) -> list[Tensor]:
        """Return the sum of each rank's loss over the labels of a prepared batch, R scalars."""
        tables = self._tables(batch["label"].device)
        if self.strength > 0:
            scores = scores.adjusted(tables.priors(), self.strength)
        parts = tables.labels(batch)
        if tables.custom is not None:
            losses = _loss_sums(parts, partial(tables.custom, scores))
        elif tables.smoothed is not None:
            losses = _smoothed_loss_sums(tables.smoothed, scores, parts, self.nulls)
        else:
            losses = _loss_sums(parts, lambda label: [-log_p for log_p in scores.label_log_probs(label)[int(self.conditional)]])
            if self.conditional:
                losses = [factor * one for factor, one in zip(tables.factors, losses, strict=True)]
        return losses

    def check_custom(self, scores: Scores, label: Tensor) -> None:
        """Raise `ConfigError` if a plugin's loss does not return, for `label` [B, R], a list with a finite tensor [B] for each rank, with a
        gradient."""
        custom = self._tables(label.device).custom
        if custom is None:
            return
        name, losses = f"{class_name(type(custom))} returns", custom(scores, label)
        is_list = isinstance(losses, (list, tuple)) and all(isinstance(one, Tensor) for one in losses)
        if not is_list or [one.shape for one in losses] != [label.shape[:1]] * label.shape[1]:
            found = [list(one.shape) for one in losses] if is_list else described(losses)
            raise ConfigError(f"{name} {found}; it must return a list of a tensor [B] for each of {label.shape[1]} ranks")
        if not any(one.requires_grad for one in losses):
            raise ConfigError(f"{name} tensors without a gradient; do not detach them")
        for one, own in zip(losses, label.unbind(1), strict=True):
            if not one.isfinite().all():
                where = "" if not one[own >= 0].isfinite().all() else " at a missing label (-1), which is multiplied by 0"
                raise ConfigError(f"{name} a loss that is not finite{where}; it must be finite")

    def _tables(self, device: torch.device) -> "_LossTables":
        if device not in self._by_device:
            self._by_device[device] = copy.deepcopy(self._host).to(device, self.dtype)
        return self._by_device[device]


def weighted_hierarchical_loss(sums: Tensor, weights: Tensor, denominators: Tensor) -> Tensor:
    """Return the loss of a micro-batch, a scalar: the sum over ranks of weight x sum / denominator. All arguments are [R].

    Denominators are the sums of label weights in the whole global batch, so losses of micro-batches add up to the loss of the global batch.
    A rank without valid labels has sum 0 and adds 0."""
    safe = torch.where(denominators > 0, denominators, torch.ones_like(denominators))
    return (sums * (weights / safe).to(sums.dtype)).sum()


def rank_loss_sums(scores: Scores, batch: Batch) -> Tensor:
    """Return the sums [R] of plain cross-entropy over the labels, for any training loss. Divided by `valid_counts`, the sums are the
    validation loss."""
    parts = [(torch.stack(scores.label_log_probs(label)[0]), weight) for label, weight in _labels_and_shares(batch, torch.float32)]
    return -torch.stack([(log_p * weight.to(log_p.dtype)).sum(1) for log_p, weight in parts]).sum(0)


def valid_counts(batch: Batch) -> Tensor:
    """Return the sum of the weights of the valid labels of each rank, without class weights, float64 [R], on the device of the batch."""
    parts = [(label >= 0) * weight.unsqueeze(1) for label, weight in _labels_and_shares(batch, torch.float64)]
    return torch.stack(parts).sum((0, 1))


def _labels_and_shares(batch: Batch, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """Return the one or two labels of each sample as pairs (label, weight). label: int64 [B, R]. weight: sample weight x share of the
    label, [B] in `dtype`."""
    weight = batch["weight"].to(dtype)
    if "label2" not in batch:
        return [(batch["label"], weight)]
    share = batch["share"].to(dtype)
    return [(batch["label"], weight * share), (batch["label2"], weight * (1 - share))]


class _LossTables(Tables):
    """Constants of a loss as buffers; float64 on the host.

    `weights` contains for each rank the weights of its C_r classes and of the null class, and then 0 for a missing label."""

    weights: Tensor  # float64 [sum over ranks of C_r + 2]
    start: Tensor  # int64 [R]: row of class 0 of each rank
    missing: Tensor  # int64 [R]: row of a missing label, counted from `start`
    factors: Tensor  # [R]: exp(-alpha x ranks above it) for the conditional loss, otherwise 1
    null_prior: Tensor

    def __init__(self, config: LossConfig, tree: TaxonomyTree, counts: LabelCounts, nulls: bool) -> None:
        super().__init__()
        self.ranks = len(tree.ranks)
        self.divided = config.coarser_share is not None  # the labels of a sample divide its weight
        self.coarser_share = config.coarser_share or 0.0
        self.smoothed = smoothed_losses(config, tree)
        part = registered("loss", config.name)
        self.custom: nn.Module | None = None
        if part is not None:
            self.custom = check_members(part.build(config, tree, counts), nn.Module, f"loss.name={config.name}: the builder returns")
            check_arguments(self.custom.forward, ("scores", "label"), f"{class_name(type(self.custom))}.forward")
            check_constant(self.custom)
        rows = np.array(tree.sizes) + 2
        alpha = config.alpha if isinstance(config, ConditionalConfig) else 0.0
        self.register(weights=self._label_weights(config, tree, counts, nulls), start=np.cumsum(rows) - rows, missing=rows - 1)
        self.register(factors=np.exp(-alpha * np.arange(self.ranks)))
        if config.logit_adjustment > 0:
            priors = counts.priors(torch.float64)
            self.register(null_prior=priors.null.numpy(), **{f"prior{r}": prior.numpy() for r, prior in enumerate(priors.ranks)})

    def _label_weights(self, config: LossConfig, tree: TaxonomyTree, counts: LabelCounts, nulls: bool) -> np.ndarray:
        """Return the buffer `weights`. The class weights of a rank have mean 1 over the rank's training labels. With
        `coarser_share` 0 only those labels are averaged that are the finest label of their row."""
        weights: list[np.ndarray] = []
        only_finest = self.divided and not self.coarser_share
        for r, rank in enumerate(counts.ranks):
            classes = counts.finest[tree.offsets[r] : tree.offsets[r + 1]] if only_finest else rank[:-1]
            usable = np.append(classes, rank[-1] if nulls else 0)
            weights += [class_weights(usable, config.class_weights, config.effective_beta, config.class_weight_cap), np.zeros(1)]
        return np.concatenate(weights)

    def priors(self) -> Priors:
        return Priors(tuple(self.get_buffer(f"prior{r}") for r in range(self.ranks)), self.null_prior)

    def labels(self, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        """Return one pair (labels int64 [B, R], weights [B, R]), or two pairs for a mixed batch.

        A weight is class weight x sample weight x share of the label; a missing label (-1) has weight 0. The weights have the dtype of
        `self.weights`."""
        pairs = _labels_and_shares(batch, self.weights.dtype)
        return [(label, self._class_weight(label) * share.unsqueeze(1)) for label, share in pairs]

    def _class_weight(self, label: Tensor) -> Tensor:
        """Return the class weight of each label, [B, R], for labels int64 [B, R].

        The weight of a missing label (-1) is 0. With `coarser_share` the class weight is multiplied by the share of the label in the
        weight of its sample."""
        weight = self.weights[self.start + torch.where(label < 0, self.missing, label)]
        return weight * self._shares(label, weight.dtype) if self.divided else weight

    def _shares(self, label: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the share of each label in the weight of its sample, [B, R], for labels int64 [B, R]. The shares of a sample have the sum
        1, or 0 without a label."""
        known = label >= 0
        finest = known & (known.flip(1).cumsum(1).flip(1) == 1)  # False if a finer rank is known
        coarser = known & ~finest
        number = coarser.sum(1, keepdim=True)
        share = (number > 0).to(dtype) * self.coarser_share
        return finest * (1 - share) + coarser * (share / number.clamp(min=1))


def _loss_sums(parts: list[tuple[Tensor, Tensor]], losses_of: Callable[[Tensor], list[Tensor]]) -> list[Tensor]:
    """Return a list of a scalar per rank: the sum of weight x loss over the labels. `parts`: pairs (labels int64 [B, R], weights [B, R]).
    `losses_of(labels)` returns a list of losses [B] per rank."""
    found = [(weight.unbind(1), losses_of(label)) for label, weight in parts]
    return [cast(Tensor, sum((weight[r] * losses[r]).sum() for weight, losses in found)) for r in range(len(found[0][0]))]


def check_constant(loss: nn.Module) -> None:
    """Raise `ConfigError` if a plugin's loss has parameters, which would not be trained, or persistent buffers, which would not be
    saved."""
    for name in loss.state_dict():
        kind = "parameter" if name in dict(loss.named_parameters()) else "buffer"
        fix = "learn it in a head" if kind == "parameter" else "for a constant use register_buffer(..., persistent=False)"
        raise ConfigError(f"{class_name(type(loss))} has the {kind} {name}; a loss is neither trained nor saved; {fix}")


def _smoothed_loss_sums(losses: nn.ModuleList, scores: Scores, parts: list[tuple[Tensor, Tensor]], nulls: bool) -> list[Tensor]:
    """Return a scalar per rank: the sum over the labels of weight x loss with smoothed targets.

    `parts`: pairs (labels int64 [B, R], weights [B, R]). `nulls`: True if the head has a null class; the loss of a null label is not
    smoothed."""
    label = torch.stack([label for label, _ in parts], 2)  # [B, R, 1 or 2]
    weight = torch.stack([weight for _, weight in parts], 2)
    log_probs = zip(*(scores.label_log_probs(label)[0] for label, _ in parts), strict=True) if nulls else ()
    exact = [torch.stack(column, 1) for column in log_probs]
    sums = []
    for r, loss in enumerate(losses):
        found = loss(scores, label[:, r])
        if nulls:
            found = torch.where(label[:, r] == cast(SmoothedLoss, loss).classes, -exact[r], found)
        sums.append((weight[:, r] * found).sum())
    return sums


def check_loss_config(config: LossConfig, nulls: bool) -> None:
    """Raise `ConfigError` for settings of the loss that contradict each other or have no effect: `effective_beta` must be set exactly if
    `class_weights` is effective, `class_weight_cap` needs class weights, `loss=marginal` needs `coarser_share`, which excludes null labels.
    `nulls`: True if the head has a null class."""
    kind, beta, cap = config.class_weights, config.effective_beta, config.class_weight_cap
    if kind == "effective" and beta is None:
        raise ConfigError("loss.class_weights=effective needs loss.effective_beta, such as 0.999; closer to 1, rare classes weigh more")
    if kind != "effective" and beta is not None:
        raise ConfigError(f"loss.effective_beta={beta} has no effect with loss.class_weights={kind}; set it to null, or choose effective")
    if kind == "none" and cap is not None:
        raise ConfigError(f"loss.class_weight_cap={cap} has no effect with loss.class_weights=none; set it to null, or choose inverse")
    if config.name == "marginal" and config.coarser_share is None:
        raise ConfigError(
            "loss=marginal is for the finest known label: loss.coarser_share must be a number; without it use loss=cross_entropy"
        )
    if nulls and config.coarser_share is not None:
        raise ConfigError(
            f"loss.coarser_share={config.coarser_share:g} treats a missing label as an unnamed taxon, so no null class would be learnt; "
            "set head.nulls=ignore, or loss.coarser_share=null with a loss other than marginal"
        )
