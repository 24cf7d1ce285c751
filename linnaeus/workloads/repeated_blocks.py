"""Find the repeated blocks of a network, such as the blocks of a ViT or a ResNet, and the depth of each parameter by their order.

Blocks are compiled or recomputed one by one (`trainer.compile`, `trainer.activation_checkpointing`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

OF_LARGEST = 0.75  # blocks are divided further only if the parts contain this share of their parameters


def find_repeated_blocks(network: nn.Module) -> list[nn.Module]:
    """Return the repeated blocks of `network` in the order of `modules()`. No block contains another one. Return [] if there are none, or
    if all blocks together have less than a quarter of the parameters.

    A block is an entry of an `nn.Sequential` or `nn.ModuleList` that consists of other modules. Its class is not in `torch.nn` and occurs
    at least twice. If entries of one class contain entries of another (stages contain blocks), the class with more entries is taken.
    Classes with less than the share `OF_LARGEST` of the parameters of the largest class are taken last, so a perceptron inside a block is
    not a block."""
    entries: dict[type, list[nn.Module]] = {}
    for module in network.modules():
        if isinstance(module, nn.Sequential | nn.ModuleList):
            for child in module:
                if not type(child).__module__.startswith("torch.nn.") and any(child.children()):
                    entries.setdefault(type(child), []).append(child)
    sizes = {cls: _size(modules) for cls, modules in entries.items() if len(modules) > 1}
    largest = max(sizes.values(), default=0)
    first = sorted((cls for cls in sizes if sizes[cls] >= OF_LARGEST * largest), key=lambda cls: (-len(entries[cls]), -sizes[cls]))
    rest = sorted(sizes.keys() - set(first), key=lambda cls: -sizes[cls])
    found: set[nn.Module] = set()
    inside: set[nn.Module] = set()  # the modules inside the blocks found
    for module in (module for cls in [*first, *rest] for module in entries[cls]):
        if module not in inside and not any(part in found for part in module.modules()):
            found.add(module)
            inside.update(module.modules())
    blocks = [module for module in network.modules() if module in found]
    return blocks if _size(blocks) >= _size([network]) / 4 else []


def use_tensor_rates(network: nn.Module) -> None:
    """Store the rates of stochastic depth in tensors, so that blocks with different rates share a compiled graph. Do nothing if all rates
    are 0. This changes the modules of `network` that have `rate` and `use_tensor(device)`, such as `DropPath` of the taxonomy workload."""
    modules: list[Any] = [module for module in network.modules() if hasattr(module, "use_tensor")]
    if any(module.rate > 0 for module in modules):
        device = next(network.parameters()).device
        for module in modules:
            module.use_tensor(device)


def _size(modules: Iterable[nn.Module]) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def block_distances(network: nn.Module, blocks: Sequence[nn.Module]) -> dict[str, int]:
    """Return {parameter name: number of layers between the parameter and the output}, for `optimizer.layer_decay`.

    `blocks`: the n blocks of `network` in the order in which they are run. The last block has distance 1, the first one n. A parameter that
    `network` registers before the first block, such as an embedding, has n + 1; one between two blocks has the distance of the later block;
    one after the last block has 0. Return {} without blocks."""
    if not blocks:
        return {}
    number = {id(parameter): i for i, block in enumerate(blocks) for parameter in block.parameters()}
    found: dict[str, int] = {}
    distance = 0
    for name, parameter in reversed(list(network.named_parameters())):
        if id(parameter) in number:
            distance = len(blocks) - number[id(parameter)]
        found[name] = distance
    for name, parameter in network.named_parameters():
        if id(parameter) in number:
            break
        found[name] = len(blocks) + 1
    return found
