"""`ForwardTime`: how long the forward passes of a network take, to see whether a command waits for the network or for the photographs."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn


class ForwardTime:
    """Sum of the times of the forward passes of a network while a `with` block runs: `seconds`.

    On a GPU, each pass is waited for, before and after. That costs little: its results are copied to the host at once."""

    def __init__(self, network: nn.Module) -> None:
        self.network, self.seconds = network, 0.0
        self._start = 0.0
        self._hooks: list[Any] = []

    def __enter__(self) -> ForwardTime:
        self._hooks = [self.network.register_forward_pre_hook(self._begin), self.network.register_forward_hook(self._end)]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _begin(self, *_: object) -> None:
        self._start = self._now()

    def _end(self, *_: object) -> None:
        self.seconds += self._now() - self._start

    def _now(self) -> float:
        if next(self.network.parameters()).is_cuda:
            torch.cuda.synchronize()
        return time.monotonic()
