"""`linnaeus serve` over real HTTP: the answers of `load_model`, batches, refusals, and clients that leave."""

from __future__ import annotations

import contextlib
import io
import json
import re
import resource
import shlex
import shutil
import socket
import struct
import subprocess
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
from PIL import Image

import linnaeus
from linnaeus.files import file_digest
from linnaeus.workloads.taxonomy.serving import serve_cli
from tests.workloads.taxonomy.serving.client import BOUNDARY, Service, form, form_header, running

FIELDS = ("latitude", "longitude", "uncertainty", "date", "time", "elevation")
PAGE = Path(serve_cli.__file__).with_name("page.html").read_text()


@pytest.fixture(scope="module")
def service(finished):
    with running(finished.bundle, "--max-body", "0.3", "--max-pixels", "1") as found:
        yield found


@pytest.fixture(scope="module")
def photograph(finished) -> bytes:
    return finished.photograph(0).read_bytes()


def bomb(side: int = 30_000) -> bytes:
    """Return a small PNG whose header declares side x side pixels."""
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100_000))) + chunk(b"IEND", b"")


def close_to(found: dict, expected: dict) -> bool:
    """Compare answers, the probabilities to the float rounding of another size of the batch."""
    if isinstance(found, dict) and isinstance(expected, dict):
        return found.keys() == expected.keys() and all(close_to(found[key], expected[key]) for key in found)
    if isinstance(found, list) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(close_to, found, expected))
    return found == pytest.approx(expected, abs=1e-6) if isinstance(found, float) else found == expected


def test_64_clients_at_once_get_the_answers_of_load_model_in_batches(finished, service: Service):
    model, rows = linnaeus.load_model(finished.bundle), finished.rows()[:64]
    given = [{name: row[name] for name in FIELDS if row.get(name)} for row in rows]
    photographs = [finished.photograph(i).read_bytes() for i in range(64)]
    start = threading.Barrier(64)

    def ask(i: int):
        start.wait()
        return service.post(photographs[i], top="3", **given[i])

    batches = service.metric("linnaeus_batch_photographs_count")
    with ThreadPoolExecutor(64) as pool:
        replies = list(pool.map(ask, range(64)))
    for reply, image, known in zip(replies, photographs, given, strict=True):
        assert reply.status == 200, reply.body
        expected = model.predict(image, top=3, **known).plain()
        answer = reply.json()
        identity = answer.pop("model")
        assert close_to(answer, expected) and answer["metadata"], (answer, expected)
        assert identity == {"name": "bundle", "sha256": model.weights.digest, "taxa": model.tree.fingerprint()}
    assert service.metric("linnaeus_batch_photographs_sum") >= 64
    assert service.metric("linnaeus_batch_photographs_count") - batches < 64, "every photograph had a batch of its own"
    assert service.metric('linnaeus_requests_total{path="/predict",status="200"}') >= 64
    assert service.metric("linnaeus_photographs_in_progress") == service.metric("linnaeus_queue_photographs") == 0


def test_a_photograph_as_the_body_and_fields_in_the_query(finished, service: Service, photograph: bytes):
    expected = linnaeus.load_model(finished.bundle).predict(photograph, latitude=10, longitude=20, date="2021-05-01").plain()
    reply = service.send("POST", "/predict?latitude=10&longitude=20&date=2021-05-01&elevation=", photograph, {"Content-Type": "image/jpeg"})
    assert reply.status == 200 and close_to(reply.json() | {"model": 0}, expected | {"model": 0})
    assert service.post(photograph, latitude="10", longitude="20", date="2021-05-01").json() == reply.json()


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_commands_of_the_page_of_the_documentation(service: Service, photograph: bytes, tmp_path):
    (tmp_path / "photo.jpg").write_bytes(photograph)
    page = (Path(__file__).resolve().parents[4] / "docs" / "using.md").read_text()
    commands = re.findall(r"^curl .*", page, re.M)
    assert len(commands) == 4
    for line in commands:
        words = shlex.split(line.replace("127.0.0.1:8000", f"127.0.0.1:{service.port}"))
        done = subprocess.run([words[0], "--silent", "--fail", *words[1:]], cwd=tmp_path, capture_output=True, check=True)
        assert "error" not in json.loads(done.stdout)


def test_the_model_is_described(finished, service: Service):
    model = linnaeus.load_model(finished.bundle)
    found = service.get("/model").json()
    assert found["taxa_of_rank"] == dict(zip(model.tree.ranks, model.tree.sizes, strict=True))
    assert (found["components"], found["untrained"], found["image_size"]) == (list(model.components), [], 16)
    assert found["card"] == (finished.bundle / "README.md").read_text() and found["limits"]["bytes"] == 300_000
    assert service.get("/health").json() == {"status": "ok"}


def test_a_service_among_some_taxa_describes_them(finished, capsys):
    model = linnaeus.load_model(finished.bundle)
    name = model.tree.names[-1][0]
    service = serve_cli.build_service(serve_cli._parse([str(finished.bundle), "--clade", name, "--threads", "1"]), 1)
    assert service.description["possible_taxa"][model.tree.ranks[-1]] == 1
    assert service.model.predict(finished.photograph(0)) == model.predict(finished.photograph(0), among=[name])
    assert f"{model.tree.ranks[-1]} 1 of {model.tree.sizes[-1]}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fields", "status", "line"),
    [
        ({"latitude": "95", "longitude": "4"}, 422, "latitude is 95; it must be from -90 to 90 degrees north"),
        ({"latitude": "52"}, 422, "latitude has no effect without longitude; give both or neither"),
        ({"date": "soon"}, 422, "date is 'soon'"),
        ({"top": "0"}, 422, "top is '0'; it must be from 1 to 1000"),
        ({"top": "9" * 100}, 422, "it must be from 1 to 1000"),
        ({"lattitude": "52"}, 422, "'lattitude' is not a field"),
        ({"date": "x" * 300}, 422, "a field of more than 200 bytes"),
        ({f"f{i}": "" for i in range(100)}, 422, "too many"),
        ({"<script>\n\x1b[2J": "1"}, 422, "is not a field"),
    ],
)
def test_an_impossible_field_is_one_line(service: Service, photograph: bytes, fields, status, line):
    reply = service.post(photograph, **fields)
    assert reply.status == status and line in reply.error() and reply.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    ("body", "status", "line"),
    {
        "no photograph": (form(None, date="2021-05-01"), 422, "the form has no file photograph"),
        "two photographs": (form(b"a")[: -len(BOUNDARY) - 6] + form(b"b"), 422, "send one file"),
        "an empty photograph": (form(b""), 422, "the photograph is empty"),
        "a text": (form(b"not a photograph"), 422, "cannot be decoded: not an image of a format that is read"),
        "half a JPEG": (form(b"\xff\xd8\xff\xe0\0\x10JFIF"), 422, "cannot be decoded"),
        "a bomb": (form(bomb()), 413, "30000 x 30000 pixels, more than 1,000,000"),
        "cut off": (form(b"abc")[:-20], 400, "cut off"),
        "no boundary": (b"abc" * 1000, 400, "multipart form cannot be read"),
        "no name": (f"--{BOUNDARY}\r\nX: y\r\n\r\nabc\r\n--{BOUNDARY}--\r\n".encode(), 400, "multipart form cannot be read"),
        "nothing": (b"", 400, "cut off"),
        "too large": (form(bytes(400_000)), 413, "larger than 300,000 bytes"),
        "far too large": (form(bytes(1_300_000)), 413, "larger than 300,000 bytes"),
    }.values(),
)
def test_a_body_that_cannot_be_read_is_one_line(service: Service, body: bytes, status: int, line: str):
    try:
        reply = service.send("POST", "/predict", body, form_header())
    except (BrokenPipeError, ConnectionResetError):  # the service closed the connection before it had read so large a body
        assert len(body) > 4 * 300_000
        return
    assert reply.status == status and line in reply.error()


def test_other_paths_methods_and_forms_are_one_line(service: Service, photograph: bytes):
    assert service.get("/nothing").error() == "Not Found"
    assert service.get("/predict").status == 405 and service.get("/predict").error()
    reply = service.send("POST", "/predict", photograph, {"Content-Type": "multipart/form-data"})
    assert reply.status == 400 and reply.error()
    chunked = service.send("POST", "/predict", iter([photograph[:50], photograph[50:]]))
    assert chunked.status == 200
    endless = service.send("POST", "/predict", iter([bytes(100_000)] * 5))
    assert endless.status == 413 and endless.error()


def test_changed_requests_do_no_harm(service: Service, photograph: bytes):
    whole, random = form(photograph, latitude="10", longitude="20"), Random(0)
    for _ in range(100):
        body = bytearray(whole)
        for _ in range(random.randint(1, 20)):
            body[random.randrange(len(body))] = random.randrange(256)
        reply = service.send(
            "POST", "/predict", bytes(body[: random.randint(1, len(body))] if random.random() < 0.3 else body), form_header()
        )
        assert reply.status in (200, 400, 413, 422) and reply.json(), reply
    assert service.get("/health").status == 200


def test_a_full_queue_refuses_and_a_client_that_leaves_makes_room(finished, photograph: bytes):
    with running(finished.run, "--queue", "2", "--batch-size", "3", "--batch-wait", "10000", "--timeout", "60") as service:
        head = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: {len(photograph)}\r\n\r\n".encode()
        waiting = [service.open(head + photograph) for _ in range(2)]
        wait_for(service, "linnaeus_queue_photographs", 2)
        refused = service.post(photograph)
        assert refused.status == 503 and refused.headers["Retry-After"] == "1" and "in progress already" in refused.error()
        for connection in waiting:
            connection.close()
        wait_for(service, "linnaeus_photographs_in_progress", 0)
        assert service.metric("linnaeus_queue_photographs") == 0 and service.metric("linnaeus_batch_photographs_count") == 0
        assert service.metric('linnaeus_requests_total{path="/predict",status="499"}') == 2
        service.open(head + photograph[:10]).close()  # in the middle of the photograph


def test_the_bodies_in_memory_have_a_limit(service: Service, photograph: bytes):
    """Each of these clients sends nearly all of an allowed body and waits; together they exceed 32 bodies of the largest size."""
    head = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 290000\r\n\r\n"
    slow = [service.open(head + bytes(289_000)) for _ in range(35)]
    wait_for(service, 'linnaeus_requests_total{path="/predict",status="503"}', len(slow) - 33)
    for connection in slow:
        connection.close()
    assert service.post(photograph).status == 200


def test_requests_in_progress_are_answered_after_the_signal(finished, photograph: bytes):
    with running(finished.bundle, "--batch-size", "2", "--batch-wait", "10000") as service:
        head = f"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: {len(photograph)}\r\n\r\n".encode()
        slow = service.open(head + photograph[:-1])
        waiting = service.open(head + photograph)
        wait_for(service, "linnaeus_queue_photographs", 1)
        service.process.terminate()
        slow.sendall(photograph[-1:])
        assert slow.recv(15) == waiting.recv(15) == b"HTTP/1.1 200 OK"
        slow.close()
        waiting.close()


def test_a_request_has_a_limited_time(finished, photograph: bytes):
    with running(finished.bundle, "--batch-wait", "10000", "--batch-size", "2", "--timeout", "0.3") as service:
        late = service.post(photograph)
        assert late.status == 504 and "not answered within 0.3 s" in late.error()
        slow = service.open(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nabc")
        assert slow.recv(1000).startswith(b"HTTP/1.1 408")
        slow.close()


def test_a_client_that_never_ends_its_request_is_left(finished, photograph: bytes):
    """Send half of the head of a request, and half of a body after its answer."""
    with running(finished.bundle, "--timeout", "0.3") as service:
        head = service.open(b"POST /predict HTTP/1.1\r\nHos")
        body = service.open(b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc")
        for connection, answer in ((head, b""), (body, b"HTTP/1.1 200")):
            received = b""
            with contextlib.suppress(ConnectionResetError):
                while part := connection.recv(1000):
                    received += part
            assert received[:12] == answer
            connection.close()
        chunks = b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nnot a number\r\n"
        for start, answers in ((b"POST /predict", {b"400"}), (b"HEAD /health", {b"400", b"405"}), (b"GET /health", {b"200", b"400"})):
            damaged = service.open(start + b" HTTP/1.1\r\nHost: x\r\n" + chunks)
            assert damaged.recv(1000)[9:12] in answers
            damaged.close()
        assert service.get("/predict/").status == 404, "no redirection to the host that a client names"


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs Linux")
def test_connections_beyond_the_open_files_of_the_process_are_closed(finished):
    """100 files are for the process; so with a limit of 110, ten connections stay open, and the others are closed at once."""
    with running(finished.bundle, "--timeout", "3600") as service:
        resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, (110, 110))
        opened = [service.open(b"") for _ in range(14)]
        for connection in opened[10:]:
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
        question = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
        for connection in opened[:10]:
            connection.sendall(question)
            assert connection.recv(12) == b"HTTP/1.1 200"
        for connection in opened[5:]:
            connection.close()
        again = b""
        while not again:  # until the service has noticed that they are closed
            with contextlib.suppress(ConnectionResetError, BrokenPipeError), service.open(question) as connection:
                again = connection.recv(12)
        assert again == b"HTTP/1.1 200"
        for connection in opened[:5]:
            connection.close()


def wait_for(service: Service, metric: str, value: float) -> None:
    for _ in range(20_000):  # each request takes about a millisecond
        if service.metric(metric) == value:
            return
    raise AssertionError(f"{metric} is {service.metric(metric)}, not {value}")


def test_the_page_needs_no_network_and_shows_names_as_text(service: Service):
    reply = service.get("/")
    assert reply.status == 200 and reply.body.decode() == PAGE
    policy = reply.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'sha256-" in policy and "unsafe-inline" not in policy.partition("style-src")[0]
    assert not re.search(r"https?:|//\w+\.", PAGE) and len(re.findall("<script", PAGE)) == 1 and not re.search(r"\son\w+=", PAGE)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", PAGE)
    names = set(re.findall(r'\$\("([\w-]+)"\)', PAGE)) | set(re.findall(r"id=\"(latitude|longitude|\w+)\"", PAGE))
    assert all(f'id="{name}"' in PAGE for name in names), names
    assert all(f'id="{name}"' in PAGE for name in FIELDS)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--port", "99999"], "--port is 99999; it must be from 0 to 65535"),
        (["--batch-size", "0"], "--batch-size is 0; it must be from 1 to 65536"),
        (["--host", "192.0.2.1"], "--host '192.0.2.1' --port 8000: cannot listen there"),
    ],
)
def test_an_impossible_option_is_one_line(finished, capsys, options, line):
    with pytest.raises(SystemExit) as ended:
        serve_cli.main([str(finished.bundle), *options])
    assert ended.value.code == 2 and line in capsys.readouterr().err


def test_a_port_that_is_taken_and_a_missing_library_are_one_line(finished, capsys, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit):
        serve_cli.main([str(finished.bundle), "--port", str(taken.getsockname()[1])])
    assert "cannot listen there (Address already in use" in capsys.readouterr().err
    monkeypatch.setattr(serve_cli, "NEEDED", ("a_library_that_is_missing",))
    with pytest.raises(SystemExit):
        serve_cli.main([str(finished.bundle)])
    assert "pip install 'linnaeus[serve]'" in capsys.readouterr().err


def test_names_come_out_as_they_went_in(finished, tmp_path, photograph: bytes):
    bundle, name = tmp_path / "model", '<img src=x onerror=alert(1)> "a, b" | \\ שלום'
    shutil.copytree(finished.bundle, bundle)
    tree = json.loads((bundle / "taxonomy.json").read_text())
    tree["names"][-1] = [f"{name} {i}" for i in range(len(tree["names"][-1]))]
    (bundle / "taxonomy.json").write_text(json.dumps(tree))
    config = json.loads((bundle / "config.json").read_text())
    config["files"]["taxonomy.json"] = file_digest(bundle / "taxonomy.json")
    (bundle / "config.json").write_text(json.dumps(config))
    image = io.BytesIO()
    Image.new("RGB", (30, 40), "green").save(image, "PNG")
    with running(bundle) as service:
        species = list(service.post(image.getvalue()).json()["ranks"].values())[-1]
    assert all(taxon["name"].startswith(name) for taxon in species)
