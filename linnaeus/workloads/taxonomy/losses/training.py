"""The training loss of a run: built once from the configuration, the tree and the counts of the training labels."""

from __future__ import annotations

import copy
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from linnaeus.data.samples import Batch
from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.config import ConditionalConfig, LossConfig, MarginalConfig
from linnaeus.workloads.taxonomy.heads import Priors, Scores
from linnaeus.workloads.taxonomy.losses.balance import LabelCounts, class_weights
from linnaeus.workloads.taxonomy.losses.labels import LabelWeights
from linnaeus.workloads.taxonomy.losses.shells import ShellLoss, shell_losses
from linnaeus.workloads.taxonomy.tree import TaxonomyTree


class TaxonomyLoss:
    """Sums per rank for training (`sums`) and what they are divided by (`valid_counts`). Validation knows nothing of it: its loss is
    plain cross-entropy (`labels.rank_loss_sums`)."""

    def __init__(
        self,
        config: LossConfig,
        tree: TaxonomyTree,
        counts: LabelCounts,
        nulls: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """`nulls`: the head has a null class. `dtype`: of the scores. Raises ConfigError for settings that contradict each other."""
        check(config, nulls)
        self.conditional = isinstance(config, ConditionalConfig)
        self.strength, self.nulls, self.dtype = config.logit_adjustment, nulls, dtype
        self._host = _Tables(config, tree, counts, nulls)
        self._placed: dict[torch.device, _Tables] = {}

    def valid_counts(self, batch: Batch) -> Tensor:
        """float64 [R] of a host batch: the weights of its labels, the denominators of the loss."""
        return self._host.labels.sums(batch)

    def sums(self, outputs: dict[str, Any], batch: Batch) -> Tensor:
        """[R]: each rank's loss summed over the labels of a prepared batch. Also left in `outputs`: "losses", the same as R scalars, for
        what differentiates one of them, and "loss_sums", detached, so that the training metrics need not compute it again."""
        tables = self._on(batch["label"].device)
        scores = self._scores(outputs, tables)
        parts = tables.labels(batch)
        if tables.shells is not None:
            losses = _shell_losses(tables.shells, scores, parts, self.nulls)
        else:
            losses = _label_losses(scores, parts, tables.factors, self.conditional)
        sums = torch.stack(losses)
        outputs["losses"], outputs["loss_sums"] = losses, sums.detach()
        return sums

    def _scores(self, outputs: dict[str, Any], tables: _Tables) -> Scores:
        """The scores of the loss, with the priors added where logits are adjusted."""
        scores: Scores = outputs["scores"]
        return scores if self.strength == 0 else scores.adjusted(tables.priors(), self.strength)

    def _on(self, device: torch.device) -> _Tables:
        """The tables on a device, copied there at the first use."""
        if device not in self._placed:
            self._placed[device] = copy.deepcopy(self._host).to(device, self.dtype)
        return self._placed[device]


class _Tables(nn.Module):
    """All that a loss looks up, as buffers; float64 on the host."""

    factors: Tensor  # [R]: of the conditionals; exp(-alpha x height of the rank) where the loss is that
    null_prior: Tensor

    def __init__(self, config: LossConfig, tree: TaxonomyTree, counts: LabelCounts, nulls: bool) -> None:
        super().__init__()
        self.labels = LabelWeights(_label_weights(config, tree, counts, nulls), isinstance(config, MarginalConfig))
        self.shells = shell_losses(config, tree)
        height = np.arange(len(tree.ranks))[::-1]
        alpha = config.alpha if isinstance(config, ConditionalConfig) else 0.0
        self.register_buffer("factors", torch.from_numpy(np.exp(-alpha * height)), persistent=False)
        self.ranks = len(tree.ranks)
        if config.logit_adjustment > 0:
            priors = counts.priors(torch.float64)
            self.register_buffer("null_prior", priors.null, persistent=False)
            for r, prior in enumerate(priors.ranks):
                self.register_buffer(f"prior{r}", prior, persistent=False)

    def priors(self) -> Priors:
        return Priors(tuple(self.get_buffer(f"prior{r}") for r in range(self.ranks)), self.null_prior)


def _label_losses(scores: Scores, parts: list[tuple[Tensor, Tensor]], factors: Tensor, conditional: bool) -> list[Tensor]:
    """Per rank [], the sum of weight x -log p(y), or `conditional`, of factor x weight x -log p(y | nearest known ancestor)."""
    found = [(weight.unbind(1), scores.at(label)[conditional]) for label, weight in parts]
    sums = [sum(-(weight[r] * log_p[r]).sum() for weight, log_p in found) for r in range(len(factors))]
    return [factor * one for factor, one in zip(factors, sums, strict=True)] if conditional else cast(list[Tensor], sums)


def _shell_losses(shells: nn.ModuleList, scores: Scores, parts: list[tuple[Tensor, Tensor]], nulls: bool) -> list[Tensor]:
    """Per rank [], the sum of weight x the loss of the labels' smoothed targets; of null labels, which are never smoothed, the same
    loss as without smoothing."""
    label = torch.stack([label for label, _ in parts], 2)  # [B, R, 1 or 2]
    weight = torch.stack([weight for _, weight in parts], 2)
    exact = [torch.stack(column, 1) for column in zip(*(scores.at(label)[0] for label, _ in parts), strict=True)] if nulls else []
    losses = []
    for r, loss in enumerate(shells):
        found = loss(scores, label[:, r])
        if nulls:
            found = torch.where(label[:, r] == cast(ShellLoss, loss).classes, -exact[r], found)
        losses.append((weight[:, r] * found).sum())
    return losses


def _label_weights(config: LossConfig, tree: TaxonomyTree, counts: LabelCounts, nulls: bool) -> list[np.ndarray]:
    """Per rank float64 [C_r + 1]: class weights, the null class last; a mean of 1 over the training labels that can count."""
    weights = []
    for r, rank in enumerate(counts.ranks):
        classes = counts.finest[tree.offsets[r] : tree.offsets[r + 1]] if isinstance(config, MarginalConfig) else rank[:-1]
        usable = np.append(classes, rank[-1] if nulls else 0)
        weights.append(class_weights(usable, config.class_weights, config.effective_beta, config.class_weight_cap))
    return weights


def check(config: LossConfig, nulls: bool) -> None:
    """Raises ConfigError for settings that contradict each other, or one that would have no effect."""
    kind, beta, cap = config.class_weights, config.effective_beta, config.class_weight_cap
    if kind == "effective" and beta is None:
        raise ConfigError("loss.class_weights=effective needs loss.effective_beta, such as 0.999; nearer to 1, rare classes weigh more")
    if kind != "effective" and beta is not None:
        raise ConfigError(f"loss.effective_beta={beta} has no effect with loss.class_weights={kind}; set it to null, or choose effective")
    if kind == "none" and cap is not None:
        raise ConfigError(f"loss.class_weight_cap={cap} has no effect with loss.class_weights=none; set it to null, or choose inverse")
    if nulls and isinstance(config, MarginalConfig):
        raise ConfigError(
            "loss=marginal takes a null label for a taxon that is there and was not named, so a null class would never be learnt; "
            "set head.nulls=ignore"
        )
