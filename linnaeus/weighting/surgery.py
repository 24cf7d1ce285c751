"""Gradient surgery through torchjd (`pip install 'linnaeus[surgery]'`): task weights with which the gradients of the tasks do not oppose
each other.

`pcgrad` (Yu et al. 2020) removes from the gradient of each task the components that oppose the gradients of other tasks, in random order;
`upgrad` (Quinton and Rey 2024) projects each gradient onto the cone in which no task gets worse. Both results are linear combinations of
the task gradients, and the coefficients depend only on the scalar products of these gradients. So the products are measured, at the last
shared layer or over the whole trunk; the library computes the coefficients; and each loss is multiplied by its coefficient before the
backward, which then computes the combination for every parameter.

The coefficients are valid for these gradients only, so they are used in the update in which they were measured. Each process therefore runs
its samples as one micro-batch, and on a GPU every update waits once for the scalar products, which the library needs on the host. The
coefficients are scaled to sum to the number of tasks; a task whose gradient is 0 keeps its configured weight."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from linnaeus.errors import ConfigError
from linnaeus.randomness import FORWARD, key
from linnaeus.weighting.task_weighting import Measurements, Requirements, SavedTensors, set_weights, usable

METHODS = {"pcgrad": "PCGradWeighting", "upgrad": "UPGradWeighting"}
INSTALL = "pip install 'linnaeus[surgery]'"


class Surgery(SavedTensors):
    """Task weights by gradient surgery.

    `method`: a key of `METHODS`. `seed`: seed of the run; the random order of PCGrad depends on it and on the number of the update."""

    requirements = Requirements(gradients=True, every_update=True, same_update=True)
    saved = ("weights",)

    def __init__(self, weights: Tensor, method: str, seed: int) -> None:
        self.weights, self.seed = weights, seed
        self.factors = weights.clone()
        self.solve = library_weighting(method)

    @torch.no_grad()
    def finish(self, measured: Measurements) -> None:
        """Set the weights for the backward of this update. The state of torch's random generator is restored afterwards."""
        assert measured.gramian is not None
        gramian = measured.gramian * self.factors * self.factors.unsqueeze(1)
        active = usable(gramian.diagonal())
        # The solver needs finite values. An update with non-finite gradients is skipped anyway.
        gramian = torch.where(active & active.unsqueeze(1), gramian, 0.0)
        generator = torch.default_generator
        state = generator.get_state()
        generator.manual_seed(key(self.seed, FORWARD, measured.update, -1) & 0x7FFFFFFFFFFFFFFF)
        coefficients = self.solve(gramian.to("cpu", torch.float64))
        generator.set_state(state)
        self.weights.copy_(self.factors)
        set_weights(self.weights, self.factors * coefficients.to(self.weights), active)


def library_weighting(method: str) -> Any:
    """Return torchjd's weighting `method`: a function from scalar products [T, T] to coefficients [T].

    Raise `ConfigError` if the library or its solver is not installed."""
    try:
        from torchjd import aggregation

        return getattr(aggregation, METHODS[method])()
    except ImportError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"weighting=surgery weighting.method={method} needs a library that is not installed ({reason}): {INSTALL}"
        ) from None
