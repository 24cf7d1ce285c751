"""`trainer.compile`: compile the network with torch.compile, by blocks or whole, and count the compiled graphs.

`blocks` compiles each repeated block by itself (regional compilation). Equal blocks share one graph, so of L equal blocks one is
compiled instead of all. The layers outside the blocks run uncompiled. `whole` compiles the parts of `Model.compiled_parts()`,
usually everything up to the last shared layer.

Each size of a batch has a graph of its own. With torch's default, graphs for any size, the graph of an update would depend on the sizes
seen earlier in the launch, and a resumed run would not have the same bits."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from typing import Any

from torch import nn

from linnaeus.errors import ConfigError, counted
from linnaeus.train.building.compile_cache import CompileCache
from linnaeus.train.measuring.clock import compile_seconds
from linnaeus.workloads.base import Model
from linnaeus.workloads.repeated_blocks import use_tensor_rates

log = logging.getLogger("linnaeus")

# Graphs of one function: kinds of blocks of a class (8 in a ResNet) x training or validation x sizes of batches and images. torch's limit
# of 8 is too small; beyond the limit a block runs uncompiled without an error.
MOST_GRAPHS = 256


def compile_model(model: Model, blocks: Sequence[nn.Module], choice: str | bool, keep_graphs: bool) -> None:
    """Compile `model` in place as `choice`, `trainer.compile`, says. Parameter names stay the same. Call this before DDP wraps the model.

    `blocks`: the repeated blocks of the model. `keep_graphs`: True if backward runs twice through a graph, because gradients are measured
    for the task weighting. Raise `ConfigError` for `blocks` if the model does not have repeated blocks."""
    parts = model.compiled_parts() if choice == "whole" else blocks
    if not parts:
        raise ConfigError(f"trainer.compile={choice}: this model does not have repeated blocks; use whole")
    allow_graphs()
    if keep_graphs:
        keep_compiled_graphs()
    if choice == "blocks":
        use_tensor_rates(model)
    for part in parts:
        part.compile(dynamic=False)


def allow_graphs() -> None:
    """Raise torch's limit on the number of graphs of one function to at least `MOST_GRAPHS`, and its accumulated limit to at least four
    times this number."""
    import torch._dynamo.config as dynamo

    dynamo.recompile_limit = max(dynamo.recompile_limit, MOST_GRAPHS)
    dynamo.accumulated_recompile_limit = max(dynamo.accumulated_recompile_limit, 4 * MOST_GRAPHS)


def keep_compiled_graphs() -> None:
    """Allow backward to run twice through a compiled graph: once to measure gradients, once to train. Call this before anything is
    compiled.

    By default the first backward reuses the memory of saved activations."""
    import torch._functorch.config as functorch

    functorch.donated_buffer = False


class Compilation:
    """Graphs that torch.compile has made in this launch, and the cache in the run directory; on ranks other than 0 `cache` is only read.

    recompilations: number of graphs made for work that had been done in this launch before: an update with the same number of samples and
    size of images, with or without an update of the task weights, or the same validation pass."""

    def __init__(self, cache: CompileCache, writes: bool) -> None:
        """`writes`: True on rank 0."""
        self.cache, self.writes = cache, writes
        self.recompilations = 0
        self._before = self._last = compiled_graphs()
        self._seconds_before = compile_seconds()
        self._seen: set[Hashable] = set()

    @property
    def graphs(self) -> int:
        """Return the number of graphs made in this launch, recompilations included."""
        return compiled_graphs() - self._before

    @property
    def seconds(self) -> float:
        """Return the seconds that torch.compile has spent in this launch, in training and validation."""
        return compile_seconds() - self._seconds_before

    def observe(self, *work: Hashable) -> None:
        """Record that `work` has been done. If it had been done before, increase `recompilations` by the number of graphs made since the
        last call of `observe`. Log a warning at the first recompilation."""
        graphs = compiled_graphs()
        if graphs > self._last and work in self._seen:
            if not self.recompilations:
                reason = "TORCH_LOGS=recompiles prints the reason; a workload should pad its batches to the same sizes"
                log.warning("torch.compile has compiled the same work again (%s): %s", ", ".join(map(str, work)), reason)
            self.recompilations += graphs - self._last
        self._seen.add(work)
        self._last = graphs

    def first_update(self) -> None:
        """Log the number of graphs that the first update of the launch has compiled, and save the cache. If there are none, log a warning
        only."""
        if not self.graphs:
            log.warning("trainer.compile: nothing was compiled; a compiled part must be of a class with its own `forward`")
            return
        cached = ", with the cache of an earlier launch" if self.cache.loaded else ""
        log.info("torch.compile: %s in %.1f s for the first update%s", counted(self.graphs, "graph"), self.seconds, cached)
        self.save()

    def save(self) -> None:
        """Save the cache on rank 0, if something new was compiled. Log an error if it cannot be written."""
        try:
            if self.writes and self.cache.save():
                log.debug("saved %s", self.cache.path)
        except OSError as error:
            log.error("%s could not be written (%s)", self.cache.path, error.strerror or error)

    def finish(self) -> None:
        """Log the number of graphs and recompilations, and save the cache."""
        numbers = counted(self.graphs, "graph"), self.seconds, counted(self.recompilations, "recompilation")
        log.info("torch.compile: %s in %.1f s, %s", *numbers)
        self.save()

    def summary(self) -> dict[str, Any]:
        """Return the numbers of this launch for summary.json."""
        return {"graphs": self.graphs, "recompilations": self.recompilations, "cached": self.cache.loaded}


def compiled_graphs() -> int:
    """Return the number of graphs that torch.compile has made in this process."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]
