"""`trainer.compile`: compile the network with torch.compile, by blocks or whole.

`blocks` compiles each repeated block by itself (regional compilation). Equal blocks share one graph, so a network with L equal blocks is
compiled in about 1 / L of the time. The layers outside the blocks run uncompiled. `whole` compiles the parts of `Model.compiled_parts()`,
usually everything up to the last shared layer."""

from __future__ import annotations

from linnaeus.errors import ConfigError
from linnaeus.workloads.base import Model
from linnaeus.workloads.drop_path import use_tensor_rates

# Graphs of one function: kinds of blocks of a class (8 in a ResNet) x training or validation x whole or partial batch. torch's limit of 8
# is too small; beyond the limit a block runs uncompiled without an error.
MOST_GRAPHS = 64


def compile_model(model: Model, choice: str | bool, keep_graphs: bool) -> None:
    """Compile `model` in place as `choice`, `trainer.compile`, says. Parameter names stay the same. Call this before DDP wraps the model.

    `keep_graphs`: True if backward runs twice through a graph, because gradients are measured for the task weighting. Raise `ConfigError`
    for `blocks` if the model does not have repeated blocks."""
    if choice is False:
        return
    parts = model.compiled_parts() if choice == "whole" else model.repeated_blocks()
    if not parts:
        raise ConfigError(f"trainer.compile={choice}: this model does not have repeated blocks; use whole")
    allow_graphs()
    if keep_graphs:
        keep_compiled_graphs()
    if choice == "blocks":
        use_tensor_rates(model)
    for part in parts:
        part.compile()


def allow_graphs() -> None:
    """Raise torch's limit on the number of graphs of one function to `MOST_GRAPHS`."""
    import torch._dynamo.config as dynamo

    dynamo.recompile_limit = max(dynamo.recompile_limit, MOST_GRAPHS)


def keep_compiled_graphs() -> None:
    """Allow backward to run twice through a compiled graph: once to measure gradients, once to train. Call this before anything is
    compiled.

    By default the first backward reuses the memory of saved activations."""
    import torch._functorch.config as functorch

    functorch.donated_buffer = False
