"""`trainer.activation_checkpointing`: do not store the activations inside blocks of the network; compute them again in backward.

A block then stores its inputs only. Memory for activations falls to a fraction, and an update takes up to a third longer, because forward
runs twice. Dropout and drop-path draw the same random numbers again, and buffers such as batch statistics change in the first forward only,
so the update is the same."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from linnaeus.errors import ConfigError, counted


def checkpoint_activations(blocks: Sequence[nn.Module], choice: str | int) -> list[str]:
    """Recompute activations in those of `blocks` that `choice`, `trainer.activation_checkpointing`, selects. Return a list with a line for
    the log; [] if `choice` is `none`.

    `blocks`: all repeated blocks of the model. Call this before they are compiled, so that the recomputation is a part of their graphs.
    Raise `ConfigError` if there are none."""
    if choice == "none":
        return []
    if not blocks:
        raise ConfigError(f"trainer.activation_checkpointing={choice}: this model does not have repeated blocks; use none")
    chosen = blocks[:: 1 if choice == "blocks" else int(choice)]
    for block in chosen:
        block.__class__ = checkpointed(cast(Any, type(block)))
    return [f"activations are recomputed in backward in {len(chosen)} of {counted(len(blocks), 'block')}"]


@functools.cache
def checkpointed(cls: Any) -> Any:
    """Return a subclass of `cls`, a subclass of `nn.Module`, that recomputes its activations in backward.

    The class of a block is replaced (as `torch.distributed.fsdp.fully_shard` does), because a wrapper module would change the names of
    parameters, and a function of each block would need a compiled graph of its own."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.stored_forward(*args, **kwargs)
        if not torch.compiler.is_compiling():  # a compiled graph changes buffers once, and cannot have contexts
            kwargs["context_fn"] = lambda: (contextlib.nullcontext(), KeptBuffers(self))
        return checkpoint(self.stored_forward, *args, use_reentrant=False, **kwargs)

    return type(cls.__name__, (cls,), {"forward": forward, "stored_forward": cls.forward, "__module__": cls.__module__})


class KeptBuffers:
    """Context manager that restores the buffers of `block` at its end. It can be entered again: torch enters it at every backward."""

    def __init__(self, block: nn.Module) -> None:
        self.block = block

    def __enter__(self) -> None:
        self.saved = [(buffer, buffer.clone()) for buffer in self.block.buffers()]

    @torch.no_grad()
    def __exit__(self, *error: object) -> None:
        """Restore, also after the exception by which torch ends a recomputation that needs no more activations."""
        for buffer, value in self.saved:
            buffer.copy_(value)
        self.saved = []
