"""A network that fails: its requests get status 500, and the next ones are answered. Cancelled requests leave the queue."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import sys
import threading
from unittest import mock

import numpy as np
import pytest
from starlette.requests import Request

import linnaeus
from linnaeus.workloads.taxonomy.serving import serve_cli
from linnaeus.workloads.taxonomy.serving.http_service import HttpService
from linnaeus.workloads.taxonomy.serving.photograph_batches import PhotographBatches
from linnaeus.workloads.taxonomy.serving.photograph_requests import Limits, Question
from linnaeus.workloads.taxonomy.serving.served_model import Asking, ServedModel
from linnaeus.workloads.taxonomy.serving.service_metrics import ServiceMetrics

PIXELS = np.zeros((8, 8, 3), dtype=np.uint8)


class Model:
    """Fails on a photograph whose first value is 1, and notes the sizes of its batches."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def answers(self, batch):
        self.sizes.append(len(batch))
        if any(one.image[0, 0, 0] for one in batch):
            raise RuntimeError("out of memory")
        return [{"path": {}} for _ in batch]


def asking(pixels: np.ndarray) -> Asking:
    return Asking(Question(b"photograph", {}), pixels)


def test_an_error_reaches_its_request_alone_and_the_others_are_answered():
    async def ask() -> None:
        batches = PhotographBatches(model, 2, 0.0, ServiceMetrics())
        worker = asyncio.create_task(batches.run())
        both = await asyncio.gather(batches.answer(asking(PIXELS + 1)), batches.answer(asking(PIXELS)), return_exceptions=True)
        assert str(both[0]) == "out of memory" and both[1] == {"path": {}}
        assert await batches.answer(asking(PIXELS)) == {"path": {}}
        worker.cancel()

    model = Model()
    asyncio.run(ask())
    assert model.sizes == [2, 1, 1, 1]


def test_a_cancelled_request_leaves_the_queue():
    async def ask() -> None:
        batches = PhotographBatches(model, 2, 3600.0, ServiceMetrics())
        worker = asyncio.create_task(batches.run())
        leaving = asyncio.create_task(batches.answer(asking(PIXELS)))
        await asyncio.sleep(0)
        assert len(batches.waiting) == 1
        leaving.cancel()
        await asyncio.wait([leaving])
        assert leaving.cancelled() and not batches.waiting
        await asyncio.gather(*(batches.answer(asking(PIXELS)) for _ in range(4)))
        worker.cancel()

    model = Model()
    asyncio.run(ask())
    assert model.sizes == [2, 2]


def test_the_body_of_a_cancelled_request_that_waits_for_a_reader_is_not_kept():
    """Readers decode large photographs, while clients send bodies and leave."""

    async def ask() -> None:
        service = HttpService(Described(), "model", "", Limits(10**6, 10**7, 10**6, 60, 10), 4, 0.0, 1)
        service.readers.submit(release.wait)
        body = b"x" * 1000
        references = sys.getrefcount(body)
        request = Request({"type": "http", "headers": [], "query_string": b""})
        leaving = [asyncio.create_task(service._answer(request, body)) for _ in range(3)]
        await asyncio.sleep(0)
        assert service.readers._work_queue.qsize() == 3 and sys.getrefcount(body) > references
        for task in leaving:
            task.cancel()
        await asyncio.wait(leaving)
        del task, leaving
        gc.collect()
        assert sys.getrefcount(body) == references

    class Described(ServedModel):
        def __init__(self) -> None:
            self.model = mock.MagicMock()
            self.model.tree.ranks, self.model.tree.sizes = [], []

        def described(self):
            return {}

    release = threading.Event()
    try:
        asyncio.run(ask())
    finally:
        release.set()


def test_the_client_of_a_failing_network_gets_status_500(finished, monkeypatch):
    async def ask() -> None:
        service = HttpService(ServedModel(model), "model", "", Limits(10**6, 10**7, 10**6, 60, 10), 4, 0.0, 1)
        photograph = {"type": "http.request", "body": finished.photograph(0).read_bytes(), "more_body": False}
        scope = {"type": "http", "method": "POST", "path": "/predict", "query_string": b"", "headers": [], "app": None}

        async def receive():
            return received.pop() if received else await asyncio.Event().wait()

        async def send(message):
            sent.append(message)

        received, sent = [photograph], []
        async with service._running(None):
            with pytest.raises(RuntimeError, match="out of memory"):  # for the log of the service
                await service.application()(scope, receive, send)
        assert sent[0]["status"] == 500 and "RuntimeError" in json.loads(sent[1]["body"])["error"]
        assert 'linnaeus_requests_total{path="/predict",status="500"} 1.0' in service.metrics.text().decode()
        assert service.in_progress == service.bodies.held == 0

    def fail(*_):
        raise RuntimeError("out of memory")

    model = linnaeus.load_model(finished.bundle)
    monkeypatch.setattr(model, "predict_pixels", fail)
    asyncio.run(ask())


def test_answers_are_sent_without_delay():
    with serve_cli._listen("127.0.0.1", 0) as listener:
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY), "an answer in two packets would wait 40 ms"
