"""`trainer.freeze`: parts of the model that are not trained, such as the trunk while heads are trained again on balanced classes.

A frozen parameter needs no gradient: backward ends above it, DDP does not wait for it, and no optimizer has it, so nothing decays it.
A part whose parameters are all frozen computes in training as it does in validation: batch statistics stand still, dropout and
drop-path are off. Which parts these are is read off the model itself, so that it holds for what a workload froze as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from linnaeus.config.schema_optimization import GradNormConfig, SurgeryConfig, WeightingConfig
from linnaeus.errors import ConfigError


def freeze(model: nn.Module, begins: Sequence[str]) -> list[str]:
    """Freeze the parameters whose names begin so, whole words between dots; returns a line about it. ConfigError for a beginning
    that no parameter has, and where nothing is left to train."""
    found = dict(model.named_parameters())
    for begin in begins:
        if not any(_under(name, begin) for name in found):
            parts = dict.fromkeys(name.partition(".")[0] for name in found)
            raise ConfigError(f"trainer.freeze: no weight begins with {begin}; they begin with {', '.join(parts)}")
    for name, parameter in found.items():
        if any(_under(name, begin) for begin in begins):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in found.values()):
        raise ConfigError(f"trainer.freeze=[{','.join(begins)}] leaves nothing to train; take out the part that is to learn")
    frozen = sum(parameter.numel() for parameter in found.values() if not parameter.requires_grad)
    total = sum(parameter.numel() for parameter in found.values())
    return [f"frozen: {', '.join(begins)}; {total - frozen:,} of {total:,} parameters are trained"] if begins else []


def frozen_parts(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The largest parts, by name, that have parameters and train none of them."""

    def walk(path: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
        wanted = [parameter.requires_grad for parameter in module.parameters()]
        if wanted and not any(wanted):
            return [(path, module)]
        return [part for name, child in module.named_children() for part in walk(f"{path}.{name}".lstrip("."), child)]

    return walk("", model)


def check_shared_layer(weighting: WeightingConfig, shared: Sequence[nn.Parameter]) -> None:
    """ConfigError where a weighting would measure gradients at a layer that has none."""
    if isinstance(weighting, GradNormConfig | SurgeryConfig) and not all(parameter.requires_grad for parameter in shared):
        raise ConfigError(
            f"weighting.name={weighting.name} measures at the last shared layer, which is frozen; use weighting=fixed, or take that layer "
            "out of trainer.freeze"
        )


def set_training(model: nn.Module, training: bool = True) -> None:
    """`model.train(training)`, but for its frozen parts, which stay as in validation."""
    model.train(training)
    for _, part in frozen_parts(model):
        part.eval()


def _under(name: str, begin: str) -> bool:
    begin = begin.rstrip(".")
    return name == begin or name.startswith(begin + ".")


def batch_statistics(model: nn.Module) -> list[str]:
    """Names of the layers whose output in training depends on the other samples of a micro-batch."""
    frozen = {id(module) for _, part in frozen_parts(model) for module in part.modules()}
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    return [name for name, module in layers if id(module) not in frozen]


def changing_buffers(model: nn.Module) -> dict[str, Tensor]:
    """The buffers that forward passes change, by name: batch statistics. All others are tables, the same on every process."""
    layers = dict(model.named_modules())
    return {f"{name}.{kind}": buffer for name in batch_statistics(model) for kind, buffer in layers[name].named_buffers(recurse=False)}
