"""A service in a process of its own, and the requests of its clients, over real HTTP."""

from __future__ import annotations

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
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body, dict(headers or {}))
            reply = connection.getresponse()
            return Reply(reply.status, reply.headers, reply.read())

    def get(self, path: str) -> Reply:
        return self.send("GET", path)

    def post(self, photograph: bytes | None, **fields: str) -> Reply:
        return self.send("POST", "/predict", form(photograph, **fields), form_header())

    def open(self, sent: bytes) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
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


@contextlib.contextmanager
def running(model: Path, *options: str) -> Iterator[Service]:
    """Start a service on a free port. End it with SIGTERM, and require the status 0."""
    command = [sys.executable, "-m", "linnaeus", "serve", str(model), "--port", "0", "--threads", "1", *options]
    process = fork_server.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    limit = threading.Timer(100, process.kill)  # a service that hangs fails its test
    limit.start()
    try:
        line = process.stdout.readline()
        assert line.startswith(f"{model}: http://127.0.0.1:"), process.stderr.read()
        yield Service(process, int(line.split("/")[-2].rpartition(":")[2]))
        process.terminate()
        out, error = process.communicate()
        assert (process.returncode, out) == (0, "the service has ended\n") and not error, error
    finally:
        limit.cancel()
        process.kill()
        process.wait()
