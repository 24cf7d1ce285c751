"""A stand-in for a GPU whose memory is full above a number of samples, so that `trainer.micro_batch_size=auto` can be tested on the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch

from linnaeus.train.building import micro_batch
from linnaeus.workloads.base import Model


class LimitedMemory:
    """Memory in which the forward pass of more than `most` samples raises `torch.OutOfMemoryError`. A sample takes a GiB. tried: the
    numbers of samples of all forward passes within the limit."""

    def __init__(self, most: int) -> None:
        self.most, self.limit, self.total, self.tried = most, most * 2.0**30, (most + 1) * 2.0**30, list[int]()
        self.released = 0

    @contextlib.contextmanager
    def limited(self) -> Iterator[None]:
        def allocate(module: torch.nn.Module, arguments: Any) -> None:
            if isinstance(module, Model):
                self.tried.append(len(arguments[0]["sample"]))
                if self.tried[-1] > self.most:
                    raise torch.OutOfMemoryError("no memory is left")

        handle = torch.nn.modules.module.register_module_forward_pre_hook(allocate)
        try:
            yield
        finally:
            handle.remove()

    def release(self) -> None:
        self.released += 1

    def peak(self) -> float:
        return self.tried[-1] * 2.0**30


@contextlib.contextmanager
def limited_to(most: int) -> Iterator[LimitedMemory]:
    """Let the runs in the block have a device with `most` GiB of memory, a GiB for each sample. Yield its memory."""
    memory = LimitedMemory(most)
    with mock.patch.object(micro_batch, "device_memory", lambda device: memory):
        yield memory
