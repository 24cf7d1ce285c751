"""Choose how many photographs a device computes at once: 32 on the CPU, the fastest number on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from linnaeus.errors import ConfigError
from linnaeus.workloads.taxonomy.observations.components import encode
from linnaeus.workloads.taxonomy.trained.batches.journal import batch_of_journal
from linnaeus.workloads.taxonomy.trained.classifier.place_and_time import metadata_of
from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import BATCH, TrainedClassifier

LARGEST = 1024
GAIN = 1.05  # least gain in photographs per second for which a batch is made twice as large


def batch_size(model: TrainedClassifier, given: int | None, out: Path | None = None) -> int:
    """Return the number of photographs in a batch: `given` (--batch-size), or that of the interrupted command that wrote the journal of
    `out`, or 32 on the CPU, or the fastest number on a GPU, which is printed.

    Raise `ConfigError` if one photograph does not fit into the memory of the GPU."""
    earlier = None if given is not None or out is None else batch_of_journal(out)
    if given is not None or earlier is not None or model.device.type == "cpu":
        return given or earlier or BATCH
    size = fastest(lambda size: photographs_per_second(model, size))
    print(f"batches of {size}, the fastest on {model.device.type}")
    return size


def fastest(rate: Callable[[int], float | None]) -> int:
    """Return the batch size that is doubled from 32 as long as the rate grows by 5 % or more, at most 1,024, or the largest size below 32
    that fits.

    rate: function of a batch size that returns photographs per second, None if the batch does not fit into the memory. Raise `ConfigError`
    if one photograph does not fit."""
    size = BATCH
    while (best := rate(size)) is None:
        if size == 1:
            raise ConfigError("one photograph does not fit into the free memory of the GPU; use --device cpu, or end other programs on it")
        size //= 2
    while size < LARGEST and (found := rate(2 * size)) is not None and found >= GAIN * best:
        size, best = 2 * size, found
    return size


def photographs_per_second(model: TrainedClassifier, size: int) -> float | None:
    """Return the rate of the second of two batches of black photographs, from pixels to probabilities on the host; None if a batch does not
    fit into the memory of the device."""
    images = np.zeros((size, model.image_size, model.image_size, 3), np.uint8)
    metadata, seconds = encode(metadata_of(size, {}), model.components), 0.0
    try:
        for _ in range(2):  # the first one allocates memory and chooses kernels
            start = time.perf_counter()
            model.scored(images, *metadata)
            seconds = time.perf_counter() - start
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        return None
    return size / seconds
