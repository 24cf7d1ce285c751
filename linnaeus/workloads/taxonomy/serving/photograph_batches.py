"""Collect the photographs of many requests into batches for the network.

One thread runs the network. Meanwhile requests wait in a queue. The next batch takes the oldest of them. A cancelled request is removed
from the queue at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from linnaeus.workloads.taxonomy.serving.service_metrics import ServiceMetrics
from linnaeus.workloads.taxonomy.trained.answers import Prediction
from linnaeus.workloads.taxonomy.trained.place_and_time import ARGUMENTS, metadata_of
from linnaeus.workloads.taxonomy.trained.trained_classifier import TrainedClassifier


@dataclass(frozen=True, eq=False)
class Waiting:
    """Photograph in the queue."""

    image: np.ndarray  # pixels as `TrainedClassifier.read` returns them
    given: Mapping[str, Any]  # place and time, as of `metadata_of`
    top: int  # listed taxa per rank
    answer: asyncio.Future[Prediction]
    since: float  # time of arrival by the clock of the event loop, in seconds


class PhotographBatches:
    """Queue of photographs, and the thread that runs the model.

    A batch starts when it has `size` photographs, or when the first of them has waited `wait` seconds."""

    def __init__(self, model: TrainedClassifier, size: int, wait: float, metrics: ServiceMetrics) -> None:
        self.model, self.size, self.wait, self.metrics = model, size, wait, metrics
        self.waiting: deque[Waiting] = deque()
        self.arrived = asyncio.Event()
        self.thread = ThreadPoolExecutor(1, "model")

    async def predict(self, image: np.ndarray, given: Mapping[str, Any], top: int) -> Prediction:
        """Put a photograph into the queue, wait for its prediction and return it. Raise the error of the network if it fails."""
        loop = asyncio.get_running_loop()
        own = Waiting(image, given, top, loop.create_future(), loop.time())
        self.waiting.append(own)
        self.arrived.set()
        try:
            return await own.answer
        finally:
            if own in self.waiting:  # cancelled
                self.waiting.remove(own)

    async def run(self) -> None:
        """Run the model on batch after batch of the queue, until this task is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            batch = await self._next_batch()
            if not batch:
                continue
            start = loop.time()
            work = loop.run_in_executor(self.thread, self._predictions, batch)
            await asyncio.wait([work])
            self.metrics.batch(len(batch), loop.time() - start)
            _deliver(batch, work)

    async def _next_batch(self) -> list[Waiting]:
        """Wait for photographs, remove the oldest ones from the queue, and return them; [] if all were cancelled meanwhile."""
        while not self.waiting:
            self.arrived.clear()
            await self.arrived.wait()
        end = self.waiting[0].since + self.wait
        while 0 < len(self.waiting) < self.size and (left := end - asyncio.get_running_loop().time()) > 0:
            self.arrived.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.arrived.wait(), left)
        return [self.waiting.popleft() for _ in range(min(self.size, len(self.waiting)))]

    def _predictions(self, batch: Sequence[Waiting]) -> list[Prediction]:
        metadata = metadata_of(len(batch), {name: [one.given.get(name) for one in batch] for name in ARGUMENTS})
        top = max(one.top for one in batch)
        found = self.model.predict_pixels([one.image for one in batch], metadata, [None] * len(batch), self.model.asked(top))
        return [replace(p, ranks={rank: taxa[: one.top] for rank, taxa in p.ranks.items()}) for one, p in zip(batch, found, strict=True)]


def _deliver(batch: Sequence[Waiting], work: asyncio.Future[list[Prediction]]) -> None:
    """Set the predictions of a finished batch, or its error, as results of the requests that still wait."""
    error = work.exception()
    answers: Sequence[Prediction | None] = [None] * len(batch) if error else work.result()
    for one, prediction in zip(batch, answers, strict=True):
        if one.answer.done():  # its client has left
            continue
        if prediction is None:
            one.answer.set_exception(error)  # type: ignore[arg-type]
        else:
            one.answer.set_result(prediction)
