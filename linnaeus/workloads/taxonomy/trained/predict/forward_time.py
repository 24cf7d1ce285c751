"""`ForwardTime`: how long the forward passes of a network take, to see whether a command waits for the network or for the photographs."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch
from torch import nn


class ForwardTime:
    """Time of the forward passes of a network while a `with` block runs: `seconds`, the mean over the threads that run passes.

    On a GPU, each pass is waited for, before and after. That costs little: its results are copied to the host at once."""

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self._started: dict[int, float] = {}  # thread -> time at which its present pass started
        self._sums: dict[int, float] = {}  # thread -> seconds of its passes
        self._hooks: list[Any] = []

    @property
    def seconds(self) -> float:
        return sum(self._sums.values()) / max(len(self._sums), 1)

    def __enter__(self) -> ForwardTime:
        self._hooks = [self.network.register_forward_pre_hook(self._begin), self.network.register_forward_hook(self._end)]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _begin(self, *_: object) -> None:
        self._started[threading.get_ident()] = self._now()

    def _end(self, *_: object) -> None:
        own = threading.get_ident()
        self._sums[own] = self._sums.get(own, 0.0) + self._now() - self._started[own]

    def _now(self) -> float:
        if next(self.network.parameters()).is_cuda:
            torch.cuda.synchronize()
        return time.monotonic()
