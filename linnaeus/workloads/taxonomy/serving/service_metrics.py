"""Count and time the requests of `linnaeus serve`. GET /metrics shows the results in the text format of Prometheus."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)  # bounds of the histograms of times
PHOTOGRAPHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # bounds of the histogram of batch sizes


class ServiceMetrics:
    """Counters and histograms of a service."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self.registry = CollectorRegistry()
        of: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter("linnaeus_requests", "Requests by path and HTTP status; 499: the client left", ["path", "status"], **of)
        self.seconds = Histogram("linnaeus_request_seconds", "Time from a request to its answer", ["path"], buckets=SECONDS, **of)
        self.in_progress = Gauge("linnaeus_photographs_in_progress", "Photographs that are decoded, wait, or are in the network", **of)
        self.waiting = Gauge("linnaeus_queue_photographs", "Decoded photographs that wait for the network", **of)
        self.batches = Histogram("linnaeus_batch_photographs", "Photographs of a batch", buckets=PHOTOGRAPHS, **of)
        self.network = Histogram("linnaeus_batch_seconds", "Time of the network for a batch", buckets=SECONDS, **of)

    def batch(self, photographs: int, seconds: float) -> None:
        """Record a batch: the number of `photographs`, and the `seconds` that the network took."""
        self.batches.observe(photographs)
        self.network.observe(seconds)

    def text(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)


class Measured:
    """ASGI middleware that counts and times the requests of `app` by path. Requests whose path is not in `paths` are counted as path
    "other"."""

    def __init__(self, app: ASGIApp, metrics: ServiceMetrics, paths: Collection[str]) -> None:
        self.app, self.metrics, self.paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, start = 500, time.perf_counter()

        async def noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, noting_status)
        finally:
            path = "/nearest" if scope["path"].startswith("/nearest/") else scope["path"] if scope["path"] in self.paths else "other"
            self.metrics.requests.labels(path, str(status)).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - start)
