"""Builds the optimizers a configuration asks for: AdamW, SGD, or Muon for hidden matrices with AdamW for the rest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from linnaeus.config.registry import registered
from linnaeus.config.schema_optimization import AdamWConfig, MuonConfig, OptimizerConfig, SGDConfig, TimmOptimizerConfig
from linnaeus.errors import ConfigError
from linnaeus.optim.foreign import ForeignOptimizer, timm_optimizer
from linnaeus.optim.fused import BaseOptimizer, FusedAdamW, FusedSGD, TorchOptimizer
from linnaeus.optim.optimizers import Optimizers
from linnaeus.optim.param_groups import Parameter, ParamGroup, parameter_groups

# Devices whose fused kernels were checked to heed found_inf; elsewhere torch.optim does the arithmetic.
FUSED_DEVICES = ("cpu", "cuda")
# Parts of a name that say input or output layer: Muon's update has no meaning for them (Jordan et al. 2024, "Muon").
NOT_HIDDEN = re.compile(r"(^|\.)(heads?|\w*_heads?|head_\w+|classifiers?|fc|\w*embed(ding)?s?|embed_\w+)(\.|$)")


def build_optimizer(config: OptimizerConfig, model: nn.Module, device: torch.device) -> Optimizers:
    """The optimizers over the bare model's trainable parameters, which must already lie on `device` in their final dtype and layout.

    Raises ConfigError for groups that are malformed or without effect, and for Muon on a model without hidden matrices."""
    groups = parameter_groups(model, config.param_groups, config.weight_decay)
    fused = config.fused and device.type in FUSED_DEVICES
    part = registered("optimizer", config.name)
    if part is not None:
        members: list[BaseOptimizer] = [ForeignOptimizer(config.name, groups, lambda torch_groups: part.build(config, torch_groups))]
    elif isinstance(config, TimmOptimizerConfig):
        members = [ForeignOptimizer(config.name, groups, lambda torch_groups: timm_optimizer(config, torch_groups))]
    elif isinstance(config, MuonConfig):
        members = _muon(config, groups, getattr(model, "no_decay", ()), fused)
    elif isinstance(config, SGDConfig):
        members = [_sgd(config, groups, fused)]
    else:
        assert isinstance(config, AdamWConfig)
        members = [_adamw(config, groups, fused)]
    frozen = sum(not p.requires_grad for p in model.parameters())
    notes = [f"{frozen} parameter tensors are frozen and in no optimizer"] if frozen else []
    return Optimizers(config.name, members, notes)


def _adamw(config: AdamWConfig | MuonConfig, groups: Sequence[ParamGroup], fused: bool, lr_scale: float = 1.0) -> BaseOptimizer:
    betas = (config.beta1, config.beta2)
    if fused:
        return FusedAdamW(groups, betas, config.eps, lr_scale)
    on_device = groups[0].tensors[0].is_cuda  # there the step count must be a tensor on the device, to be selected back

    def make(torch_groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(torch_groups, betas=betas, eps=config.eps, fused=False, capturable=on_device)

    def initial(p: Tensor) -> dict[str, Tensor]:
        step = torch.zeros((), device=p.device if on_device else "cpu")
        return {"step": step, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}

    member = TorchOptimizer("adamw", groups, make, initial, lr_scale)
    member.beta2 = config.beta2
    return member


def _sgd(config: SGDConfig, groups: Sequence[ParamGroup], fused: bool) -> BaseOptimizer:
    if config.nesterov and not config.momentum:
        raise ConfigError("optimizer.nesterov=true: it needs momentum; set optimizer.momentum above 0 or nesterov=false")
    if fused:
        return FusedSGD(groups, config.momentum, config.nesterov)

    def make(torch_groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.SGD(torch_groups, momentum=config.momentum, nesterov=config.nesterov, fused=False)

    def initial(p: Tensor) -> dict[str, Tensor]:
        return {"momentum_buffer": torch.zeros_like(p)} if config.momentum else {}

    return TorchOptimizer("sgd", groups, make, initial)


def _muon(config: MuonConfig, groups: Sequence[ParamGroup], tokens: Sequence[str], fused: bool) -> list[BaseOptimizer]:
    """`torch.optim.Muon` over hidden matrices, AdamW at `adamw_lr_scale` times the learning rate over everything else."""
    hidden = _part(groups, lambda parameter: is_hidden_matrix(parameter, tokens))
    rest = _part(groups, lambda parameter: not is_hidden_matrix(parameter, tokens))
    if not hidden:
        raise ConfigError("optimizer.name=muon: the model has no 2-d hidden weight for it; use optimizer=adamw")

    def make(torch_groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.Muon(torch_groups, momentum=config.momentum, nesterov=True)

    members: list[BaseOptimizer] = [TorchOptimizer("muon", hidden, make, lambda p: {"momentum_buffer": torch.zeros_like(p)})]
    return [*members, _adamw(config, rest, fused, config.adamw_lr_scale)] if rest else members


def is_hidden_matrix(parameter: Parameter, tokens: Sequence[str]) -> bool:
    """Whether Muon takes it: a 2-d weight that is no embedding, head or token table."""
    if parameter.tensor.ndim != 2 or isinstance(parameter.owner, (nn.Embedding, nn.EmbeddingBag)):
        return False
    return parameter.name not in tokens and NOT_HIDDEN.search(parameter.name) is None


def _part(groups: Sequence[ParamGroup], belongs: Any) -> list[ParamGroup]:
    parts = [replace(group, parameters=tuple(p for p in group.parameters if belongs(p))) for group in groups]
    return [part for part in parts if part.parameters]
