"""Exclude parts of the model from training (`trainer.freeze`), for example the trunk while heads are retrained on balanced classes.

A frozen parameter has `requires_grad=False`: it gets no gradient, DDP does not wait for it, and no optimizer contains it, so it has no
weight decay. A module whose parameters are all frozen stays in evaluation mode: its batch statistics do not change, its dropout and
drop-path are off. Frozen modules are found by `requires_grad`, so this also applies to parameters that a workload freezes itself."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from linnaeus.config.schema_optimization import GradNormConfig, SurgeryConfig, WeightingConfig
from linnaeus.errors import ConfigError


def freeze(model: nn.Module, prefixes: Sequence[str]) -> list[str]:
    """Freeze the parameters whose names begin with one of the dotted `prefixes`. Return a list with a line for the log; [] without
    prefixes.

    Raise `ConfigError` for a prefix that matches no parameter, and if no parameter is left to train."""
    parameters = dict(model.named_parameters())
    for prefix in prefixes:
        if not any(_has_prefix(name, prefix) for name in parameters):
            parts = dict.fromkeys(name.partition(".")[0] for name in parameters)
            raise ConfigError(f"trainer.freeze: no weight name begins with {prefix}; the names begin with {', '.join(parts)}")
    for name, parameter in parameters.items():
        if any(_has_prefix(name, prefix) for prefix in prefixes):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise ConfigError(f"trainer.freeze=[{','.join(prefixes)}] leaves nothing to train; remove the part that should be trained")
    frozen = sum(parameter.numel() for parameter in parameters.values() if not parameter.requires_grad)
    total = sum(parameter.numel() for parameter in parameters.values())
    return [f"frozen: {', '.join(prefixes)}; {total - frozen:,} of {total:,} parameters are trained"] if prefixes else []


def frozen_parts(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return (name, module) of each outermost module whose parameters are all frozen. Modules inside a frozen module are not listed."""

    def walk(path: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
        trained = [parameter.requires_grad for parameter in module.parameters()]
        if trained and not any(trained):
            return [(path, module)]
        return [part for name, child in module.named_children() for part in walk(f"{path}.{name}".lstrip("."), child)]

    return [] if all(parameter.requires_grad for parameter in model.parameters()) else walk("", model)


def check_shared_layer(weighting: WeightingConfig, shared: Sequence[nn.Parameter]) -> None:
    """Raise `ConfigError` if the weighting measures gradients at the last shared layer and that layer is frozen."""
    if isinstance(weighting, GradNormConfig | SurgeryConfig) and not all(parameter.requires_grad for parameter in shared):
        raise ConfigError(
            f"weighting.name={weighting.name} measures at the last shared layer, which is frozen; use weighting=fixed, or "
            "remove that layer from trainer.freeze"
        )


def set_training(model: nn.Module, training: bool = True) -> None:
    """Call `model.train(training)`, then set the frozen parts of the model to evaluation mode."""
    model.train(training)
    for _, part in frozen_parts(model):
        part.eval()


def _has_prefix(name: str, prefix: str) -> bool:
    prefix = prefix.rstrip(".")
    return name == prefix or name.startswith(prefix + ".")


def batch_statistics(model: nn.Module) -> list[str]:
    """Return the names of all layers with batch statistics, such as batch norm, that are not frozen.

    The output of such a layer for a sample depends on the other samples in the micro-batch."""
    frozen = {id(module) for _, part in frozen_parts(model) for module in part.modules()}
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    return [name for name, module in layers if id(module) not in frozen]


def changing_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return {name: buffer} for the buffers that forward passes change (batch statistics). All other buffers are equal on every process."""
    layers = dict(model.named_modules())
    return {f"{name}.{kind}": buffer for name in batch_statistics(model) for kind, buffer in layers[name].named_buffers(recurse=False)}
