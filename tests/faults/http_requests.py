"""Mutated requests to `linnaeus serve`, for `fuzz.py`, each a function of a seed and the number of the case, and the rules for answers.

Half of them are whole requests whose photograph, fields, form or headers are changed; the others are changed in any byte, cut off, or ask
for files outside of the service. Each has a connection of its own, which its client closes after the answer.
"""

import contextlib
import json
import random
import re
import socket
from collections.abc import Iterator
from pathlib import Path

from tests.faults import bundles
from tests.faults.mutations import CELLS, DAMAGE, photograph
from tests.workloads.taxonomy.serving.client import BOUNDARY, Service, form, running

TIMEOUT = 30.0  # seconds; the service gives up a request after one
STATUSES = (200, 400, 404, 405, 408, 413, 422, 431, 503, 504)
FIELDS = (
    "latitude",
    "longitude",
    "uncertainty",
    "date",
    "time",
    "elevation",
    "top",
    "nearest",
    "heat_map",
    "clade",
    "checklist",
    "region",
    "x",
    "<script>",
    "latitude[]",
    "__class__",
)
VALUES = (
    *CELLS,
    "52.1",
    "4.3",
    "5",
    "2026-05-01",
    "16:10",
    "1e5",
    "-0",
    "٣",
    "0x10",
    "true",
    "1_0",
    "9" * 150,
    "%00",
    "../../etc/passwd",
    "{{7*7}}",
)
# fmt: off
TARGETS = (
    "/", "/model", "/health", "/metrics", "/predict", "//predict", "/predict/", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd",
    "/..%2f..%2fetc/passwd",    "/static/../config.json", "/predict?path=/etc/passwd", "/predict?top=%ff", "/\\..\\x", "/" + "a" * 9000,
    "/nearest/0", "/nearest/../config.json", "/predict?checklist=/etc/passwd",
    "*", "http://127.0.0.1/health", "/?" + "a&" * 3000,
)
FORM = "multipart/form-data; boundary="
METHODS = ("GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE", "CONNECT", "PATCH", "post", "G\0T", "A" * 500)
HEADERS = (
    ("Content-Length", ("0", "-1", "1", "99999999999999999999", "1e3", "10, 11", "٣", " ")),
    ("Transfer-Encoding", ("chunked", "gzip, chunked", "identity", "chunked, chunked", "x")),
    ("Content-Type", ("application/json", "multipart/form-data", FORM, "text/plain; charset=\xff", FORM + "b" * 500)),
    ("Content-Encoding", ("gzip", "br")),
    ("Expect", ("100-continue", "x")),
    ("Upgrade", ("websocket", "h2c")),
    ("Connection", ("Upgrade", "close", "keep-alive")),
    ("Host", ("", "evil", "a, b")),
    ("Range", ("bytes=0-1",)),
    ("X-Forwarded-For", ("a" * 7000,)),
    ("Cookie", ("\x01", "a=" + "b" * 70000)),
)
# fmt: on


@contextlib.contextmanager
def service() -> Iterator[Service]:
    """Start a service of the bundle without mutations. Requests may make it read nothing but this bundle; its stderr has to be empty."""
    folder = bundles.original() / "bundle"
    with running(folder, "--timeout", "1", "--max-body", "0.1", "--max-pixels", "0.01", watched=True, seconds=36000) as found:
        yield found


def request(seed: int, number: int) -> tuple[bytes, bool]:
    """Return the bytes of a mutated request, and True if every client that sends them gets an answer."""
    rng = random.Random(f"request {seed} {number}")
    target, headers = "/predict", {"Host": "127.0.0.1"}
    image = photograph(rng, rng.choice(("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")))
    fields = {rng.choice(FIELDS): rng.choice(VALUES) for _ in range(rng.choice((0, 0, 1, 2, 5)))}
    if rng.random() < 0.6:
        image = rng.choice(DAMAGE)(rng, image)
    if rng.random() < 0.7:
        body, headers["Content-Type"] = form(image, **fields), f"multipart/form-data; boundary={BOUNDARY}"
        if rng.random() < 0.5:
            body = rng.choice(DAMAGE)(rng, body)
    else:
        body = image
    method = "POST"
    if plain := rng.random() < 0.5:
        return _bytes(method, target, headers | {"Content-Length": str(len(body))}, body), plain
    headers["Content-Length"] = str(len(body))
    if rng.random() < 0.4:
        method, target = rng.choice(METHODS), rng.choice(TARGETS)
    for name, values in rng.sample(HEADERS, rng.choice((0, 1, 1, 2))):
        headers[name] = rng.choice(values)
    content = _bytes(method, target, headers, body)
    if rng.random() < 0.4:
        head = min(len(content), 300)
        content = rng.choice(DAMAGE)(rng, content[:head]) + content[head:]
    return content, plain


def _bytes(method: str, target: str, headers: dict[str, str], body: bytes) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "Connection: close", "", ""]
    return "\r\n".join(lines).encode("utf-8", "surrogatepass") + body


def failures(found: Service, content: bytes, whole: bool) -> list[str]:
    """Send a request, and return the rules that its answer breaks."""
    with contextlib.closing(socket.create_connection(("127.0.0.1", found.port), TIMEOUT)) as connection:
        try:
            connection.sendall(content)
        except (BrokenPipeError, ConnectionResetError):  # refused before all of it was read
            return []
        try:
            reply = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        except TimeoutError:
            return [f"no answer within {TIMEOUT:.0f} s"]
        except ConnectionResetError:
            return []
    return wrong_reply(reply, whole, content.partition(b" ")[0])


def wrong_reply(reply: bytes, whole: bool, method: bytes = b"POST") -> list[str]:
    """Return the rules that an answer breaks. `whole`: there must be one."""
    head, _, body = reply.partition(b"\r\n\r\n")
    status = head.split(b" ")[1:2]
    if not reply:
        return ["the connection was closed without an answer"] if whole else []
    if status == [b"100"]:
        return wrong_reply(body, False, method)
    if not status or not status[0].isdigit() or int(status[0]) not in STATUSES:
        return [f"answered {reply[:300]!r}"]
    failed = []
    if b"Traceback" in reply or b"root:x:0" in reply or bundles.SECRET.encode() in reply:
        failed.append(f"the answer has what it must not have: {reply[:300]!r}")
    if b"application/json" in head and body and method != b"HEAD":
        length = re.search(rb"content-length: (\d+)", head.lower())
        try:
            content = json.loads(body[: int(length[1])] if length else body)  # more can follow: the answer to a second request
        except ValueError:
            return [f"not JSON: {reply[:500]!r}"]
        if int(status[0]) >= 400 and (list(content) != ["error"] or "\n" in content["error"] or len(content["error"]) > bundles.MAX_LINE):
            failed.append(f"an error of {len(body)} bytes: {body[:300]!r}")
    return failed


def check(found: Service, number: int, seed: int, folder: Path) -> tuple[str, list[str]]:
    """Send a mutated request. Return it and its failures."""
    content, whole = request(seed, number)
    return repr(content[:1000]), failures(found, content, whole)
