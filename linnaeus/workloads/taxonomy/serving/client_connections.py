"""Connections of the HTTP service: each has a time limit for the client, and a damaged request leaves no traceback in the log.

uvicorn has no time limit for the head of a request. Without a limit, a client that sends the head byte by byte would keep a connection open
for ever."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST = 2048  # open connections
FILES = 100  # that the process opens besides connections


class ClientConnection(H11Protocol):
    """HTTP connection with a time limit. It is closed if the client has not sent the whole request after `seconds` + 1, and if the answer
    is not sent completely after `seconds` + 1 more."""

    seconds = 30.0
    timer: asyncio.TimerHandle | None = None
    received = False  # all of the request

    def connection_made(self, transport: Any) -> None:
        """Start the timer of a new connection. Close the connection at once if too many are open."""
        super().connection_made(transport)
        if len(self.connections) > min(MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - FILES):
            transport.abort()
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Read a part of a request. Restart the timer when the request is complete."""
        super().data_received(data)
        if not self.received and self.conn.their_state is not h11.IDLE and self.conn.their_state is not h11.SEND_BODY:
            self.received = True
            self._start_timer()

    def on_response_complete(self) -> None:
        """Restart the timer, for the next request on this connection."""
        self.received = False
        self._start_timer()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        if self.timer is not None:
            self.timer.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer a request that cannot be parsed with status 400 and the text `msg`. Only close the connection if another answer has begun
        already."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:  # there is an answer already, or the request is HEAD, whose answer has no content
            self.transport.close()

    def _start_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.loop.call_later(self.seconds + 1, self.transport.abort)  # a second more than a refusal with a reason needs


def connections(seconds: float) -> type[ClientConnection]:
    """Return a subclass of `ClientConnection` with a limit of `seconds`.

    Also raise the limit of open files of this process to 2 x `MOST` + `FILES`, or to the hard limit of the system if this is lower.
    Connections above `MOST` are closed at once, but need an open file until then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * MOST + FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed if hard == resource.RLIM_INFINITY else min(needed, hard)), hard))
    return type("LimitedConnection", (ClientConnection,), {"seconds": seconds})
