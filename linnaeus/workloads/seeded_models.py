"""Networks whose initial weights are a function of a seed.

A network is made on the meta device, which skips torch's own initialisation, and then moved to the CPU. All parameters and buffers are set
to NaN, and `init_weights` must set each of them. So a parameter that `init_weights` leaves out is found as NaN."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TypeVar

import torch

from linnaeus.randomness import INIT, key
from linnaeus.workloads.base import Model


class SeededModel(Model):
    """Model that initialises its own parameters and buffers in `init_weights`."""

    @abstractmethod
    def init_weights(self) -> None:
        """Initialise every parameter and buffer, with torch's default generator."""


Network = TypeVar("Network", bound=SeededModel)


def initialised(build: Callable[[], Network], seed: int) -> Network:
    """Return the network that `build` makes, on the CPU, with weights that are a function of `seed`."""
    with torch.device("meta"):
        network = build()
    network.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*network.parameters(), *network.buffers()):
            if tensor.is_floating_point():
                tensor.fill_(torch.nan)
    torch.default_generator.manual_seed(key(seed, INIT) & 0x7FFFFFFFFFFFFFFF)
    network.init_weights()
    return network
