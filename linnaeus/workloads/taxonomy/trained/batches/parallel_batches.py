"""Compute results for the photographs of a command, on all cores or on a GPU."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

from linnaeus.workloads.taxonomy.trained.batches.reading_ahead import ReadBatch, read_batches
from linnaeus.workloads.taxonomy.trained.classifier.trained_classifier import TrainedClassifier
from linnaeus.workloads.taxonomy.trained.photographs.photograph_list import Inputs

Result = TypeVar("Result")
AT_ONCE = 4  # batches whose activations may be in memory together


def computed(
    model: TrainedClassifier,
    inputs: Inputs,
    size: int,
    threads: int,
    activity: str,
    compute: Callable[[ReadBatch], Result],
    done: int = 0,
) -> Iterator[Result]:
    """Yield `compute(part)` for the parts of `inputs`, in order, and show the progress. Skip the first `done` photographs.

    A part is a batch of `size` photographs or, on the CPU, a piece of one. On the CPU, `threads` parts are computed at once, each with one
    of torch's threads (with more if there are fewer photographs than threads): threads that share one forward pass wait for each other
    and for those that read photographs. With resnet10t at 64 px on two cores, this has 1.2 to 1.3 x the rate of shared passes.

    `activity`: word beside the progress, such as "predicting"."""
    if model.device.type != "cpu":
        yield from map(compute, read_batches(model, inputs, size, threads, activity, done))
        return
    piece = max(1, min(size, AT_ONCE * size // threads, -(-len(inputs) // threads)))
    ends = [end for stop in range(0, len(inputs), size) for end in _ends(stop, min(stop + size, len(inputs)), piece)]
    workers = min(threads, len(ends))
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads // workers,)) as pool:
        try:
            for part in read_batches(model, inputs, size, threads, activity, done, ends):
                waiting.append(pool.submit(compute, part))
                if len(waiting) > 2 * workers:  # while the oldest is awaited, the other workers have parts to go on with
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)  # the number of MKL's threads is that of the whole process


def _ends(first: int, last: int, piece: int) -> list[int]:
    """Return the ends of pieces of at most `piece` photographs from `first` to `last`."""
    return [*range(first + piece, last, piece), last]
