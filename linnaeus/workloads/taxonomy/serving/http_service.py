"""`HttpService`: the HTTP routes of `linnaeus serve`, and the steps from a request to its answer.

    POST /predict    receive -> read the form and decode, in a thread -> queue -> network -> JSON
    GET  /model, /health, /metrics, /, /nearest/NUMBER

If the client disconnects, its request is cancelled at any of these steps.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import re
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from linnaeus.errors import counted, one_line, quoted
from linnaeus.files import to_json, to_utf8
from linnaeus.workloads.taxonomy.images.decoding import decode
from linnaeus.workloads.taxonomy.images.integrity import NotAnImage, TooManyPixels
from linnaeus.workloads.taxonomy.serving.photograph_batches import Answer, PhotographBatches
from linnaeus.workloads.taxonomy.serving.photograph_requests import CLIENT_LEFT, RETRY, Bodies, Limits, Question, read_question
from linnaeus.workloads.taxonomy.serving.served_model import Asking, ServedModel
from linnaeus.workloads.taxonomy.serving.service_metrics import Measured, ServiceMetrics

PAGE = Path(__file__).with_name("page.html")
PATHS = ("/", "/predict", "/model", "/health", "/metrics", "/nearest/{number}")


class HttpService:
    """HTTP service of a classifier. `name`: name of the model, shown in answers. `card`: text of the model card.

    `batch_size`: largest number of photographs in a batch of the network. `batch_wait`: longest time that a photograph waits for others, in
    seconds. `threads`: number of threads that decode photographs."""

    def __init__(self, served: ServedModel, name: str, card: str, limits: Limits, batch_size: int, batch_wait: float, threads: int) -> None:
        self.served, self.model, self.limits, self.in_progress = served, served.model, limits, 0
        self.identity = {"name": name, "sha256": self.model.weights.digest, "taxa": self.model.tree.fingerprint()}
        self.description = self.identity | self._described(card)
        self.metrics = ServiceMetrics()
        self.batches = PhotographBatches(served, batch_size, batch_wait, self.metrics)
        self.metrics.waiting.set_function(lambda: len(self.batches.waiting))
        self.metrics.in_progress.set_function(lambda: self.in_progress)
        self.bodies = Bodies(limits)
        self.readers = ThreadPoolExecutor(threads, "reader")
        self.worker: asyncio.Task[None] | None = None

    def _described(self, card: str) -> dict[str, Any]:
        tree, model, limits = self.model.tree, self.model, self.limits
        limited = {"bytes": limits.body, "pixels": limits.pixels, "seconds": limits.seconds, "queue": limits.queue}
        taxa = dict(zip(tree.ranks, map(int, tree.sizes), strict=True))
        possible = {} if model.restriction is None else {"possible_taxa": model.restriction.counts()}
        described = {"taxa_of_rank": taxa, "components": list(model.components), "image_size": model.image_size}
        described |= {"center_crop": model.description.center_crop, "untrained": list(model.description.untrained)}
        return described | possible | self.served.described() | {"limits": limited, "card": card}

    def application(self) -> Starlette:
        """Return the ASGI application."""
        endpoints = (self.page, self.predict, self.show_model, self.health, self.show_metrics, self.thumbnail)
        routes = [Route(path, f, methods=["POST" if f == self.predict else "GET"]) for path, f in zip(PATHS, endpoints, strict=True)]
        handlers: dict[Any, Any] = {HTTPException: _refused, Exception: _failed}
        measured = Middleware(Measured, metrics=self.metrics, paths=PATHS)
        app = Starlette(routes=routes, exception_handlers=handlers, middleware=[measured], lifespan=self._running)
        app.router.redirect_slashes = False  # a redirection names the host that the client gave
        return app

    @contextlib.asynccontextmanager
    async def _running(self, _: Starlette) -> AsyncIterator[None]:
        self.worker = asyncio.create_task(self.batches.run())
        yield
        self.worker.cancel()
        for pool in (self.readers, self.batches.thread):
            pool.shutdown(wait=False, cancel_futures=True)

    async def predict(self, request: Request) -> Response:
        """Answer `POST /predict` with the prediction for the photograph, as JSON.

        Raise `HTTPException` with the status 400, 408, 413, 422, 499, 503 or 504."""
        async with self.bodies.receive(request) as body:
            with self._counted():
                answer = await self._while_connected(request, self._answer(request, body))
        return _json(answer | {"model": self.identity})

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        """Count one more photograph in progress during the `with` block. Raise `HTTPException` with status 503 if `limits.queue` are in
        progress."""
        if self.in_progress >= self.limits.queue:
            raise HTTPException(503, f"{counted(self.in_progress, 'photograph')} in progress already; try again", RETRY)
        self.in_progress += 1
        try:
            yield
        finally:
            self.in_progress -= 1

    async def _answer(self, request: Request, body: bytes) -> Answer:
        header, query = request.headers.get("content-type", ""), request.query_params.multi_items()
        waiting, loop = [body], asyncio.get_running_loop()
        try:
            asking = await loop.run_in_executor(self.readers, lambda: self._read(read_question(header, query, waiting.pop())))
        finally:
            waiting.clear()  # the queue of the threads keeps the function of a cancelled request until a thread is free
        return await self.batches.answer(asking)

    def _read(self, question: Question) -> Asking:
        """Decode the photograph of `question`. Return the question together with the pixels.

        Raise `HTTPException` with status 413 if the photograph has too many pixels, with 422 if it cannot be decoded, and for the options
        of the question as `ServedModel.check` does."""
        self.served.check(question)
        try:
            return Asking(question, decode(question.photograph, self.model.short_side, self.limits.pixels))
        except TooManyPixels as error:
            text = f"the photograph has {error.width} x {error.height} pixels, more than {self.limits.pixels:,}; send a smaller one"
            raise HTTPException(413, text) from None
        except NotAnImage as error:
            raise HTTPException(422, f"the photograph cannot be decoded: {one_line(error)}") from None

    async def _while_connected(self, request: Request, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Return the result of `work`. Cancel `work` and raise `HTTPException` with status 499 if the client disconnects first, or with
        status 504 if `work` takes longer than `limits.seconds`."""
        task, left = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait([task, left], timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            if left.done():
                raise HTTPException(CLIENT_LEFT, "the client left")
            raise HTTPException(504, f"the photograph was not answered within {self.limits.seconds:g} s; try again")
        finally:
            task.cancel()
            left.cancel()
            await asyncio.wait([task, left])

    async def show_model(self, _: Request) -> Response:
        """Answer `GET /model` with a description of the model and of the limits, as JSON."""
        return _json(self.description)

    async def health(self, _: Request) -> Response:
        """Answer `GET /health` with status 200 while the service can answer photographs, otherwise 503."""
        working = self.worker is not None and not self.worker.done()
        return _json({"status": "ok" if working else "the thread of the model has ended"}, 200 if working else 503)

    async def show_metrics(self, _: Request) -> Response:
        """Answer `GET /metrics` with the metrics in the text format of Prometheus."""
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def thumbnail(self, request: Request) -> Response:
        """Answer `GET /nearest/NUMBER` with the thumbnail of photograph NUMBER of the index, as JPEG.

        Raise `HTTPException` with status 404 if the index has no such photograph or its file cannot be read, and with 503 if too many
        photographs are in progress."""
        nearest, number = self.served.nearest, request.path_params["number"]
        if not re.fullmatch(r"[0-9]{1,12}", number):
            raise HTTPException(404, f"the index has no photograph {quoted(number)}; give its number")
        with self._counted():
            find = lambda: None if nearest is None else nearest.thumbnail(int(number))
            picture = await asyncio.get_running_loop().run_in_executor(self.readers, find)
        if picture is None:
            raise HTTPException(404, f"the index has no photograph {quoted(number)} that can be read")
        return Response(picture, headers={"Cache-Control": "max-age=3600"}, media_type="image/jpeg")

    async def page(self, _: Request) -> Response:
        """Answer `GET /` with the web page. Its Content-Security-Policy allows only the script of the page itself, so HTML in the name of a
        taxon cannot run code."""
        text = PAGE.read_text(encoding="utf-8")
        script = re.search(r"<script>(.*)</script>", text, re.S)
        assert script
        digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
        policy = (
            f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src 'self' blob: data:; connect-src 'self'"
        )
        policy += "; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        return HTMLResponse(text, headers={"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"})


async def _disconnected(request: Request) -> None:
    """Wait until the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _json(content: Any, status: int = 200, headers: Any = None) -> Response:
    return Response(to_utf8(to_json(content, indent=None)), status, headers, "application/json")


async def _refused(_: Request, error: HTTPException) -> Response:
    return _json({"error": error.detail}, error.status_code, error.headers)


async def _failed(_: Request, error: Exception) -> Response:
    return _json({"error": f"the server failed ({type(error).__name__}); its log has the reason"}, 500)
