"""Messages about a run: which are sent, once each, and that no server can hold a run up."""

from __future__ import annotations

import errno
import json
import logging
import sys
import threading
import time
import types
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock, patch

import pytest

from linnaeus.reporting import notifications
from linnaeus.reporting.notifications import Notifier
from tests import runs

Sent = list[tuple[str, str, str]]  # (type, title, text)


class Stub:
    """Stand-in for apprise: it notes messages, or never answers."""

    sent: ClassVar[Sent] = []
    answer: ClassVar[bool] = True
    hang: ClassVar[threading.Event | None] = None

    def add(self, address: str) -> bool:
        return address.startswith("json://")

    def notify(self, body: str, title: str, notify_type: str) -> bool:
        if Stub.hang is not None:
            Stub.hang.wait(60)
        Stub.sent.append((notify_type, title, body))
        return Stub.answer


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sent]:
    stub: Any = types.ModuleType("apprise")
    stub.Apprise = Stub
    monkeypatch.setitem(sys.modules, "apprise", stub)
    Stub.sent, Stub.answer, Stub.hang = [], True, None
    yield Stub.sent
    if Stub.hang is not None:
        Stub.hang.set()


def started(path: Path, *events: str, address: str = "json://localhost") -> Notifier:
    notifier = Notifier(path, "biota / first", [address], events or notifications.EVENTS)
    notifier.start("started")
    return notifier


def texts(sent: Sent) -> list[str]:
    return [text for _, _, text in sent]


def test_a_run_sends_start_milestones_best_and_end(tmp_path: Path, sent: Sent) -> None:
    settings = ["logger.notify=['json://host']", "schedule.log=[1steps]", "schedule.validate=[100%]"]
    runs.run("vectors", tmp_path, *settings)
    assert [text.partition(" at ")[0].partition(";")[0].partition(":")[0] for text in texts(sent)] == [
        *("started", "25 %", "50 %", "75 %"),
        *("best val/loss so far", "finished"),
    ]
    assert {title for _, title, _ in sent} == {"vectors / run"}
    assert sent[-1][0] == "success" and "best val/loss" in sent[-1][2] and "loss 0" in sent[2][2]


@pytest.mark.parametrize("first", ["milestones", "end"])
def test_a_milestone_is_sent_once_over_all_launches(tmp_path: Path, sent: Sent, first: str) -> None:
    """Killed after it, before the next checkpoint. If the first launch was not to send it, it is not counted as sent."""
    for events in (first, "milestones"):
        notifier = started(tmp_path, events)
        notifier.milestone("25 %", "25 %")
        notifier.close()
    assert texts(sent) == ["25 %"]


@pytest.mark.parametrize("function", ["read_json", "write_atomic"])
def test_a_disk_that_fails_at_a_milestone_does_not_end_the_messages(
    tmp_path: Path, sent: Sent, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    notifier = started(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(notifications, function, Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        notifier.milestone("25 %", "a quarter")
    notifier.close("the end")
    found = texts(sent)
    assert found.count("a quarter") == found.count("the end") == 1, found


def test_only_the_chosen_events_are_sent(tmp_path: Path, sent: Sent) -> None:
    notifier = started(tmp_path, "end")
    notifier.send("best", "best")
    logging.getLogger("linnaeus").warning("a warning")
    notifier.close("failed", failed=True)
    assert sent == [("failure", "biota / first", "failed")]


def test_a_warning_is_sent_at_once_and_then_counted(tmp_path: Path, sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(notifications.time, "monotonic", lambda: now[0])
    notifier = started(tmp_path, "warnings")
    for seconds, line in ((0, "spike"), (10, "spike again"), (20, "and again"), (2000, "NaN")):
        now[0] = 1000.0 + seconds
        logging.getLogger("linnaeus").warning(line)
    notifier.close()
    logging.getLogger("linnaeus").warning("after the end")
    assert texts(sent) == ["spike", "NaN\n2 more warnings, the newest: and again"] and {kind for kind, _, _ in sent} == {"warning"}


@pytest.mark.parametrize(
    ("events", "told"),
    [
        (["warnings", "milestones", "end"], ["half\n1 more warning, the newest: again", "finished\n1 more warning, the newest: later"]),
        (["warnings", "best", "end"], ["best\n1 more warning, the newest: again", "finished\n1 more warning, the newest: later"]),
        (["warnings"], ["the launch ends\n2 more warnings, the newest: later"]),
        (["milestones", "end"], ["half", "finished"]),
    ],
)
def test_warnings_that_were_only_counted_are_told_by_the_next_message(
    tmp_path: Path, sent: Sent, events: list[str], told: list[str]
) -> None:
    """No later warning comes."""
    notifier, log = started(tmp_path, *events), logging.getLogger("linnaeus")
    log.warning("spike")
    log.warning("again")
    notifier.milestone("50 %", "half")
    notifier.send("best", "best")
    log.warning("later")
    notifier.close("finished")
    assert texts(sent) == [*(["spike"] if "warnings" in events else []), *told]


def test_a_server_that_hangs_blocks_nothing(tmp_path: Path, sent: Sent, warnings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the stub would hold the caller for a minute."""
    monkeypatch.setattr(notifications, "END_TIMEOUT", 0.2)
    Stub.hang = threading.Event()
    notifier, began = started(tmp_path), time.monotonic()
    for number in range(100):
        notifier.send("best", str(number))
    notifier.close("finished")
    assert time.monotonic() - began < 20 and sent == []
    assert warnings == ["logger.notify: no more messages are sent, training continues (no answer within 0 s)"]


@pytest.mark.parametrize(("address", "answer"), [("json://host", False), ("nonsense", True)])
def test_a_refused_message_is_one_line_without_the_address(
    tmp_path: Path, sent: Sent, warnings: list[str], address: str, answer: bool
) -> None:
    Stub.answer = answer
    notifier = started(tmp_path, address=address)
    notifier.send("best", "better")
    notifier.close("finished")
    assert len(warnings) == 1 and "training continues" in warnings[0] and address not in warnings[0]


def test_the_next_message_is_sent_after_one_that_was_refused(tmp_path: Path, sent: Sent, warnings: list[str]) -> None:
    answers = iter([True, False, False, True, False, True])
    with patch.object(Stub, "notify", lambda self, **message: next(answers) and sent.append(message["body"]) is None):
        notifier = started(tmp_path)
        for text in ("first", "second", "third", "fourth"):
            notifier.send("best", text)
        notifier.close("finished")
    assert sent == ["started", "third", "finished"] and warnings == []


def test_apprise_not_installed(tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    started(tmp_path).close("finished")
    assert len(warnings) == 1 and "apprise" in warnings[0]


def test_values_from_the_environment_are_not_sent(tmp_path: Path, sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "hide", lambda text: text.replace("secret", "${oc.env:TOKEN}"))
    notifier = started(tmp_path, "end")
    notifier.close("failed: secret")
    assert texts(sent) == ["failed: ${oc.env:TOKEN}"]


def test_the_real_apprise_posts_to_a_server(tmp_path: Path) -> None:
    pytest.importorskip("apprise")
    found: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    started(tmp_path, address=f"json://127.0.0.1:{server.server_port}").close("finished")
    server.shutdown()
    assert [(post["title"], post["message"], post["type"]) for post in found] == [
        ("biota / first", "started", "info"),
        ("biota / first", "finished", "success"),
    ]
