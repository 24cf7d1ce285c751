"""Build the network of a workload on its device, and check that every parameter is initialised."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from linnaeus.checkpoint.weight_files import WRAPPERS
from linnaeus.config.contracts import check_arguments, check_members, class_name
from linnaeus.config.schema import Config
from linnaeus.errors import ConfigError
from linnaeus.randomness import INIT, key
from linnaeus.workloads.base import Model, Workload, check_no_decay


def build_model(config: Config, workload: Workload, device: torch.device) -> Model:
    """Return the workload's model, on `device` and in the dtype and memory format of the run.

    torch's generators are seeded first. Raise `ConfigError` if the model does not implement `Model`, has an uninitialised parameter, or has
    a submodule whose name a checkpoint would lose."""
    torch.manual_seed(key(config.seed, INIT) & 0x7FFFFFFFFFFFFFFF)
    with new_memory_is_nan():
        model = workload.build_model()
    check_members(model, Model, f"{class_name(type(workload))}.build_model returns")
    check_arguments(model.forward, ("batch",), f"{class_name(type(model))}.forward")
    check_names(model)
    check_initialised(model)
    check_no_decay(model)
    model = model.to(device)
    if config.trainer.precision == "float64":
        model = model.double()
    if config.trainer.channels_last:
        model = model.to(memory_format=torch.channels_last)
    return model


@contextlib.contextmanager
def new_memory_is_nan() -> Iterator[None]:
    """Return a context manager in which `torch.empty` fills float tensors with NaN, so that `check_initialised` can find parameters that
    were never set.

    The context manager uses torch's deterministic mode."""
    settings: Any = torch.utils.deterministic
    mode, fill = torch.get_deterministic_debug_mode(), settings.fill_uninitialized_memory
    torch.set_deterministic_debug_mode("warn")  # `use_deterministic_algorithms` sets the same, but imports the compiler: 2 s
    settings.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        settings.fill_uninitialized_memory = fill


def check_names(model: torch.nn.Module) -> None:
    """Raise `ConfigError` if a weight has a name that begins with a prefix of DDP or torch.compile, which checkpoints leave out. A run with
    such a model could not be resumed."""
    name = next((name for name in model.state_dict() if name.startswith(WRAPPERS)), None)
    if name is not None:
        owner, prefix = class_name(type(model)), name.partition(".")[0]
        raise ConfigError(f"{owner} has a submodule called {prefix}, the name that DDP or torch.compile gives a wrapped model; rename it")


def check_initialised(model: torch.nn.Module) -> None:
    """Raise `ConfigError` if a parameter contains NaN: it was created by `torch.empty` and never set."""
    forgotten = [name for name, parameter in model.named_parameters() if parameter.isnan().any()]
    if forgotten:
        names = f"{', '.join(forgotten[:3])}{', ...' if len(forgotten) > 3 else ''}"
        raise ConfigError(f"model: {names} is not initialised (it is NaN); set every parameter in the constructor or in init_weights()")
