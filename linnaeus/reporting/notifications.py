"""Send short messages about a run to a phone or a chat, by the package apprise: at its start, at milestones, at the best validation, after
a warning or an error, and at its end.

One thread makes all calls of apprise and reads messages from a short queue, so a server that does not answer cannot block the run. Messages
that do not fit into the queue are left out, and the end of the run waits at most `END_TIMEOUT` seconds for the last message. Addresses
contain tokens, so they are never logged.
"""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from linnaeus.config.environment import hide
from linnaeus.errors import counted
from linnaeus.files import read_json, to_json, write_atomic
from linnaeus.reporting.sinks.soft_failure import SoftFailure
from linnaeus.reporting.terminal.console import LOGGER

EVENTS = ("start", "milestones", "best", "warnings", "end")
TYPES = {"warnings": "warning", "end": "success", "failed": "failure"}  # of apprise, which shows a colour or an icon; otherwise info
QUEUE = 20  # messages
END_TIMEOUT = 5.0  # seconds
REFUSED = 3  # messages in a row that are not sent, after which the launch sends no more
QUIET = 15 * 60.0  # seconds after a message about a warning, in which further warnings are only counted
SENT = "notified.json"  # in the run directory: milestones that were sent, so that a resumed run does not repeat them

Message = tuple[str, str]  # (type of apprise, text)


class Notifier:
    """Sender of messages with the title `title` to `addresses` (URLs of apprise).

    events: kinds of messages to send, from `EVENTS`. directory: run directory. Without addresses, or with `directory` None (ranks other
    than 0), every method does nothing."""

    def __init__(self, directory: Path | None, title: str, addresses: Sequence[str], events: Sequence[str] = EVENTS) -> None:
        self._addresses = list(addresses) if directory is not None else []
        self._record = None if directory is None else directory / SENT
        self._title, self._events = title, set(events)
        self._soft = SoftFailure("logger.notify", "no more messages are sent")
        self._queue: queue.Queue[Message | None] = queue.Queue(QUEUE)
        self._thread: threading.Thread | None = None
        self._handler: _WarningHandler | None = None
        self._lock = threading.Lock()  # warnings come from several threads
        self._quiet_until, self._counted, self._newest = 0.0, 0, ""

    @property
    def active(self) -> bool:
        return bool(self._addresses) and not self._soft.failed

    def start(self, text: str) -> None:
        """Start the thread and queue the message `text` of the event `start`.

        If `events` contains `warnings`, queue a message for each later warning or error in the log, as the method `warning` does."""
        if self.active and self._thread is None:
            self._thread = threading.Thread(target=self._work, name="notifications", daemon=True)
            self._thread.start()
            if "warnings" in self._events:
                self._handler = _WarningHandler(self)
                LOGGER.addHandler(self._handler)
            self.send("start", text)

    def send(self, event: str, text: str, kind: str | None = None) -> None:
        """Queue the message `text` about `event`, one of `EVENTS`. Do nothing if `event` is not one of the chosen events, before `start`,
        or if `QUEUE` messages are waiting. The number of warnings that no message has told yet is added, with the newest one.

        kind: key of `TYPES` for apprise's type of the message (colour or icon); None: `event`. A key that is not in `TYPES` gives
        "info"."""
        if self._thread is not None and self.active and event in self._events:
            with self._lock, contextlib.suppress(queue.Full):
                more = f"\n{counted(self._counted, 'more warning')}, the newest: {self._newest}" if self._counted else ""
                self._queue.put_nowait((TYPES.get(kind or event, "info"), hide(text + more)))
                self._counted = 0

    def milestone(self, name: str, text: str) -> None:
        """Queue the message `text` about the milestone `name`, unless a message about it was queued before in this run (recorded in
        notified.json).

        Do nothing if `milestones` is not one of the chosen events. If notified.json cannot be read or written, log a warning and queue the
        message: a later launch may repeat it."""
        if self._thread is None or self._record is None or "milestones" not in self._events:
            return
        try:
            sent = list((read_json(self._record) or {}).get("milestones") or [])
            if name in sent:
                return
            write_atomic(self._record, to_json({"milestones": [*sent, name]}))
        except OSError as error:
            LOGGER.warning("%s cannot be used (%s); the message about %s may be sent again", self._record, error.strerror, name)
        self.send("milestones", text)

    def warning(self, text: str) -> None:
        """Queue the message `text` about a warning or an error in the log.

        During the next 15 minutes, further warnings are only counted; the next message of any kind gives their number and the newest."""
        now = time.monotonic()
        with self._lock:
            quiet = now < self._quiet_until
            if quiet:
                self._counted, self._newest = self._counted + 1, text
            else:
                self._quiet_until = now + QUIET
        if not quiet:
            self.send("warnings", text)

    def close(self, text: str = "", failed: bool = False) -> None:
        """Queue the message `text` of the event `end`, unless `text` is empty. If warnings were counted that no message has told, and this
        one is not sent, queue a message about them. Wait until all messages are sent, at most about
        `END_TIMEOUT` seconds.

        failed: True if the run failed, which sets the type (colour or icon) of the message."""
        if self._handler is not None:
            LOGGER.removeHandler(self._handler)
            self._handler = None
        thread, deadline = self._thread, time.monotonic() + END_TIMEOUT
        if thread is None:
            return
        if text:
            self.send("end", text, "failed" if failed else None)
        if self._counted:
            self.send("warnings", "the launch ends")
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=END_TIMEOUT)
            thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            self._soft.fail(f"no answer within {END_TIMEOUT:.0f} s")
        self._thread = None

    def _work(self) -> None:
        """Send the queued messages, until the queue returns None or `REFUSED` messages in a row cannot be sent. This is the function of the
        thread."""
        try:
            import apprise

            target: Any = apprise.Apprise()
            logging.getLogger("apprise").setLevel(logging.CRITICAL)  # its lines contain addresses
            wrong = sum(not target.add(address) for address in self._addresses)
            if wrong:
                self._soft.fail(f"{counted(wrong, 'address')} of {len(self._addresses)} cannot be read, see apprise's list of URLs")
            refused = 0
            while (message := self._queue.get()) is not None and not self._soft.failed:
                kind, text = message
                refused = 0 if target.notify(body=text, title=self._title, notify_type=kind) else refused + 1
                if refused == REFUSED:
                    self._soft.fail(f"{REFUSED} messages in a row were refused or not answered")
                elif refused:
                    LOGGER.info("logger.notify: a message was refused or not answered: %s", text.partition("\n")[0])
        except Exception as error:  # apprise has plugins for 130 services; none of them may end the run
            self._soft.fail(f"{type(error).__name__}: {hide(str(error))}" if not isinstance(error, ImportError) else error)


class _WarningHandler(logging.Handler):
    """Handler that passes warnings and errors of the program's log to a notifier."""

    def __init__(self, notifier: Notifier) -> None:
        super().__init__(logging.WARNING)
        self._notifier = notifier

    def emit(self, record: logging.LogRecord) -> None:
        self._notifier.warning(record.getMessage())
