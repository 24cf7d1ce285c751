"""A service in a process of its own, and the requests of its clients, over real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from linnaeus.workloads.taxonomy.serving.http_service import HttpService
from linnaeus.workloads.taxonomy.serving.photograph_requests import Limits
from linnaeus.workloads.taxonomy.serving.served_model import ServedModel
from tests import fork_server

BOUNDARY = "boundary-of-the-tests"


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def error(self) -> str:
        assert self.body.count(b"\n") == 1 and list(self.json()) == ["error"], self.body
        return self.json()["error"]


class Service:
    def __init__(self, process: subprocess.Popen, port: int) -> None:
        self.process, self.port = process, port

    def send(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        with contextlib.closing(connection):
            connection.request(method, path, body, dict(headers or {}))
            reply = connection.getresponse()
            return Reply(reply.status, reply.headers, reply.read())

    def get(self, path: str) -> Reply:
        return self.send("GET", path)

    def post(self, photograph: bytes | None, **fields: str) -> Reply:
        return self.send("POST", "/predict", form(photograph, **fields), form_header())

    def open(self, sent: bytes) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=600)
        connection.sendall(sent)
        return connection

    def metric(self, line: str) -> float:
        """Return the value of a line of /metrics, 0 if it is missing."""
        lines = self.get("/metrics").body.decode().splitlines()
        return next((float(text.rpartition(" ")[2]) for text in lines if text.rpartition(" ")[0] == line), 0.0)


def form_header() -> dict[str, str]:
    return {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


def form(photograph: bytes | None, **fields: str) -> bytes:
    part = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="'
    out = b"".join(f'{part}{name}"\r\n\r\n{value}\r\n'.encode() for name, value in fields.items())
    if photograph is not None:
        out += f'{part}photograph"; filename="a.jpg"\r\nContent-Type: image/jpeg\r\n\r\n'.encode() + photograph + b"\r\n"
    return out + f"--{BOUNDARY}--\r\n".encode()


def exchange(served: ServedModel, *requests: tuple[str, str, bytes]) -> list[Reply]:
    """Send requests (method, path with query, body) to a service in this process, at once. Return its replies, in order."""

    async def all_replies() -> list[Reply]:
        service = HttpService(served, "model", "", Limits(10**6, 10**7, 10**6, 60, 32), 8, 0.0, 1)  # of this event loop
        application = service.application()
        async with service._running(None):
            return list(await asyncio.gather(*(_reply(application, *request) for request in requests)))

    return asyncio.run(all_replies())


async def _reply(application: Any, method: str, path: str, body: bytes) -> Reply:
    path, _, query = path.partition("?")
    left = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[dict[str, Any]] = []

    async def receive():
        return left.pop() if left else await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": [], "app": None}
    await application(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Reply(sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent[1:]))


@contextlib.contextmanager
def running(model: Path, *options: str, watched: bool = False, seconds: float = 100) -> Iterator[Service]:
    """Start a service on a free port. End it with SIGTERM, and require the status 0 and nothing on stderr.

    `watched`: each file that it reads outside of `model` is on stderr (tests/faults/watched.py)."""
    program = ["tests.faults.watched", str(model), "linnaeus"] if watched else ["linnaeus"]
    command = [sys.executable, "-m", *program, "serve", str(model), "--port", "0", "--threads", "1", *options]
    process = fork_server.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    limit = threading.Timer(seconds, process.kill)  # a service that hangs fails its test
    limit.start()
    try:
        line = next((line for line in process.stdout if line.startswith(f"{model}: http://127.0.0.1:")), "")  # notes are before it
        assert line, process.stderr.read()
        yield Service(process, int(line.split("/")[-2].rpartition(":")[2]))
        process.terminate()
        out, error = process.communicate()
        assert (process.returncode, out) == (0, "the service has ended\n") and not error, error
    finally:
        limit.cancel()
        process.kill()
        process.wait()
