"""Gradient surgery through torchjd (`pip install -e '.[surgery]'`): weights under which no task's gradient works against another's.

`pcgrad` (Yu et al. 2020) takes from each task's gradient what points against another's, in random order; `upgrad` (Quinton and Rey 2024)
projects each onto the cone where no task gets worse. Both results are combinations of the tasks' gradients, and the factors follow from
the scalar products of these alone. So we measure the products at one place (the last shared layer, or exactly, over all of the
trunk), let the library say the factors, and weigh the losses with them: the one backward that follows makes the combination in every
parameter.

The factors belong to these gradients and to no others: they act on the very update they were measured in. So a process runs its
samples in one micro-batch, and on a GPU every update waits once for the scalar products, which the library wants on the host. The
factors are scaled to sum to the number of tasks; a task whose gradient is 0 keeps its configured weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from linnaeus.errors import ConfigError
from linnaeus.randomness import FORWARD, key
from linnaeus.weighting.task_weighting import Measurements, Requirements, load_tensors, set_weights, usable

METHODS = {"pcgrad": "PCGradWeighting", "upgrad": "UPGradWeighting"}
INSTALL = "pip install -e '.[surgery]'"


class Surgery:
    """`method` is a key of `METHODS`; `seed` the run's, from which PCGrad draws its orders, by the number of the update."""

    requirements = Requirements(gradients=True, always=True, at_once=True)

    def __init__(self, weights: Tensor, method: str, seed: int) -> None:
        self.weights, self.seed = weights, seed
        self.factors = weights.clone()
        self.solve = library_weighting(method)

    @torch.no_grad()
    def finish(self, measured: Measurements) -> None:
        """Set the weights of this update."""
        assert measured.gramian is not None
        gramian = measured.gramian * self.factors * self.factors.unsqueeze(1)
        sound = usable(gramian.diagonal())
        # what is not finite skips the update anyway; a solver must not meet it
        gramian = torch.where(sound & sound.unsqueeze(1), gramian, 0.0)
        generator = torch.default_generator
        state = generator.get_state()
        generator.manual_seed(key(self.seed, FORWARD, measured.update, -1) & 0x7FFFFFFFFFFFFFFF)
        found = self.solve(gramian.to("cpu", torch.float64))
        generator.set_state(state)
        self.weights.copy_(self.factors)
        set_weights(self.weights, self.factors * found.to(self.weights), sound)

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        load_tensors(state, weights=self.weights)


def library_weighting(method: str) -> Any:
    """torchjd's weighting, a function of a Gramian [T, T] to [T]. Raises ConfigError where the library or its solver is missing."""
    try:
        from torchjd import aggregation

        return getattr(aggregation, METHODS[method])()
    except ImportError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"weighting=surgery weighting.method={method} needs a library that is not installed ({reason}): {INSTALL}"
        ) from None
