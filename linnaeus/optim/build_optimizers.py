"""Build the optimizers that the configuration names: AdamW, SGD, Muon, a timm optimizer or an optimizer that a plugin registered.

Muon updates hidden matrices only. AdamW then updates all other parameters of the model."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from linnaeus.config.registry import registered
from linnaeus.config.schema_optimization import AdamWConfig, MuonConfig, OptimizerConfig, SGDConfig, TimmOptimizerConfig
from linnaeus.errors import ConfigError, counted
from linnaeus.optim.optimizers import BaseOptimizer, FusedAdamW, FusedSGD, Optimizers
from linnaeus.optim.param_groups import Parameter, ParamGroup, parameter_groups
from linnaeus.optim.wrapped_optimizers import ExternalOptimizer, TorchOptimizer, timm_optimizer

# Name parts of input and output layers. Muon is defined for hidden matrices only (Jordan et al. 2024, "Muon").
NOT_HIDDEN = re.compile(r"(^|\.)(heads?|\w*_heads?|head_\w+|classifiers?|fc|\w*embed(ding)?s?|embed_\w+)(\.|$)")


def build_optimizer(config: OptimizerConfig, model: nn.Module, seed: int = 0, sharded: Collection[str] = ()) -> Optimizers:
    """Return the optimizers for the trainable parameters of `model`. The model must not be wrapped in DDP yet, and must have its final
    device, dtype and layout. config: its `lr` is the learning rate of the run, scaled with the global batch. seed: seed of the run, by
    which moments in bf16 are rounded at random. sharded: names of the parameters that are divided over the processes.

    Raise `ConfigError` for malformed parameter groups, for a group that sets nothing or matches no parameter, for Muon with a model that
    does not have hidden matrices, and for moments in bf16 without the fused kernel or with parameters that are not float32."""
    groups = parameter_groups(model, config.param_groups, config.weight_decay, config.layer_decay)
    part = registered("optimizer", config.name)
    if part is not None:
        optimizers: list[BaseOptimizer] = [ExternalOptimizer(config.name, groups, lambda torch_groups: part.build(config, torch_groups))]
    elif isinstance(config, TimmOptimizerConfig):
        optimizers = [ExternalOptimizer(config.name, groups, lambda torch_groups: timm_optimizer(config, torch_groups))]
    elif isinstance(config, MuonConfig):
        optimizers = _muon(config, groups, getattr(model, "no_decay", ()))
    elif isinstance(config, SGDConfig):
        optimizers = [_sgd(config, groups)]
    else:
        assert isinstance(config, AdamWConfig)
        optimizers = [_adamw(config, groups) if config.state_precision == "float32" else _rounded_adamw(config, groups, seed, sharded)]
    frozen = sum(not p.requires_grad for p in model.parameters())
    notes = [f"{counted(frozen, 'parameter tensor')} frozen and not optimized"] if frozen else []
    return Optimizers(config.name, optimizers, notes)


def _adamw(config: AdamWConfig | MuonConfig, groups: Sequence[ParamGroup], lr_scale: float = 1.0) -> BaseOptimizer:
    betas = (config.beta1, config.beta2)
    if config.fused:
        return FusedAdamW(groups, betas, config.eps, lr_scale)
    on_device = groups[0].tensors[0].is_cuda  # on CUDA the step count must be a device tensor, so that a skip can restore it

    def make(torch_groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(torch_groups, betas=betas, eps=config.eps, fused=False, capturable=on_device)

    def initial_state(p: Tensor) -> dict[str, Tensor]:
        step = torch.zeros((), device=p.device if on_device else "cpu")
        return {"step": step, "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}

    optimizer = TorchOptimizer("adamw", groups, make, initial_state, lr_scale)
    optimizer.beta2 = config.beta2
    return optimizer


def _rounded_adamw(config: AdamWConfig, groups: Sequence[ParamGroup], seed: int, sharded: Collection[str]) -> BaseOptimizer:
    if not config.fused:
        raise ConfigError("optimizer.state_precision=bf16 needs torch's fused kernel; set optimizer.fused=true")
    from linnaeus.optim.rounded_adamw import RoundedAdamW

    return RoundedAdamW(groups, (config.beta1, config.beta2), config.eps, seed, sharded)


def _sgd(config: SGDConfig, groups: Sequence[ParamGroup]) -> BaseOptimizer:
    if config.nesterov and not config.momentum:
        raise ConfigError("optimizer.nesterov=true needs momentum; set optimizer.momentum above 0 or optimizer.nesterov=false")
    if config.fused:
        return FusedSGD(groups, config.momentum, config.nesterov)

    def make(torch_groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.SGD(torch_groups, momentum=config.momentum, nesterov=config.nesterov, fused=False)

    def initial_state(p: Tensor) -> dict[str, Tensor]:
        return {"momentum_buffer": torch.zeros_like(p)} if config.momentum else {}

    return TorchOptimizer("sgd", groups, make, initial_state)


def _muon(config: MuonConfig, groups: Sequence[ParamGroup], tokens: Sequence[str]) -> list[BaseOptimizer]:
    """Return `torch.optim.Muon` for the hidden matrices and, if there are other parameters, AdamW for these.

    AdamW uses `adamw_lr_scale` times the learning rate. `tokens`: full names of parameters that Muon must not update (`model.no_decay`).
    Raise `ConfigError` if no parameter is a hidden matrix."""
    hidden = _subset(groups, lambda parameter: is_hidden_matrix(parameter, tokens))
    rest = _subset(groups, lambda parameter: not is_hidden_matrix(parameter, tokens))
    if not hidden:
        raise ConfigError("optimizer.name=muon: the model does not have a 2-d hidden weight for Muon; use optimizer=adamw")

    def make(torch_groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.Muon(torch_groups, momentum=config.momentum, nesterov=True)

    optimizers: list[BaseOptimizer] = [TorchOptimizer("muon", hidden, make, lambda p: {"momentum_buffer": torch.zeros_like(p)})]
    return [*optimizers, _adamw(config, rest, config.adamw_lr_scale)] if rest else optimizers


def is_hidden_matrix(parameter: Parameter, tokens: Sequence[str]) -> bool:
    """Return True if Muon may update the parameter: a 2-d weight that is not in an embedding or a head, and whose name is not in `tokens`.

    `tokens`: full names of parameters that Muon must not update (`model.no_decay`), such as class tokens."""
    if parameter.tensor.ndim != 2 or isinstance(parameter.owner, (nn.Embedding, nn.EmbeddingBag)):
        return False
    return parameter.name not in tokens and NOT_HIDDEN.search(parameter.name) is None


def _subset(groups: Sequence[ParamGroup], keep: Callable[[Parameter], bool]) -> list[ParamGroup]:
    """Return copies of `groups` with only the parameters for which `keep` returns True. Groups without such a parameter are left out."""
    subsets = [replace(group, parameters=tuple(p for p in group.parameters if keep(p))) for group in groups]
    return [subset for subset in subsets if subset.parameters]
