"""Task weights that stay as configured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor


class FixedWeighting:
    """Nothing to measure, nothing to keep: the weights come from the configuration again."""

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights

    def measure(self, losses: Tensor | Sequence[Tensor], shared: Sequence[Tensor], scale: Tensor | None = None) -> None:
        pass

    def finish(self, all_reduce: Callable[[Tensor], Tensor]) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass
