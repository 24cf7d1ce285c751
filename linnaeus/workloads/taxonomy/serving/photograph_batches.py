"""Collect the photographs of many requests into batches for the network.

One thread runs the network on one batch. Meanwhile requests wait in a queue. The oldest requests in the queue become the next batch. A
cancelled request is removed from the queue at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from linnaeus.workloads.taxonomy.serving.served_model import Asking, ServedModel
from linnaeus.workloads.taxonomy.serving.service_metrics import ServiceMetrics

Answer = dict[str, Any]  # for JSON


@dataclass(frozen=True, eq=False)
class Waiting:
    """Request in the queue: the decoded photograph with its options, and a future for the answer."""

    asking: Asking
    answer: asyncio.Future[Answer]
    since: float  # time of arrival by the clock of the event loop, in seconds


class PhotographBatches:
    """Queue of photographs, and the thread that runs the model.

    A batch starts when `size` photographs wait, or `wait` seconds after the oldest of them arrived. `metrics` records the size and time of
    each batch."""

    def __init__(self, model: ServedModel, size: int, wait: float, metrics: ServiceMetrics) -> None:
        self.model, self.size, self.wait, self.metrics = model, size, wait, metrics
        self.waiting: deque[Waiting] = deque()
        self.arrived = asyncio.Event()
        self.thread = ThreadPoolExecutor(1, "model")

    async def answer(self, asking: Asking) -> Answer:
        """Put a request into the queue, wait for the answer and return the answer. If the network fails on the request, raise the error of
        the network."""
        loop = asyncio.get_running_loop()
        own = Waiting(asking, loop.create_future(), loop.time())
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
            work = loop.run_in_executor(self.thread, self._answers, [one.asking for one in batch])
            await asyncio.wait([work])
            self.metrics.batch(len(batch), loop.time() - start)
            _deliver(batch, work.result())

    def _answers(self, batch: Sequence[Asking]) -> Sequence[Answer | Exception]:
        """Return the answer to each request. If a batch fails, compute its requests one by one, and return the error of those that fail
        alone."""
        try:
            return self.model.answers(batch)
        except Exception as error:
            if len(batch) == 1:
                return [error]
        return [self._answers([one])[0] for one in batch]

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


def _deliver(batch: Sequence[Waiting], answers: Sequence[Answer | Exception]) -> None:
    """Give each request of a finished batch its answer or its error. Skip cancelled requests. `answers`: in the order of `batch`."""
    for one, answer in zip(batch, answers, strict=True):
        if one.answer.done():  # its client has left
            continue
        if isinstance(answer, Exception):
            one.answer.set_exception(answer)
        else:
            one.answer.set_result(answer)
