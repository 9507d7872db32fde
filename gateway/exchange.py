"""One HTTP request and its reply: what came, what was decided, and the only place that writes to the wire."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from gateway.anthropic_errors import is_anthropic_path
from gateway.headers import decision_headers, request_id_of, trace_of
from gateway.ids import new_ulid
from gateway.protocol import BODY_FOLLOWS
from orchestration.core import Call, Controls, Delta, Event, Finish, Notes, Request, Start, Usage

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

JSON = b"application/json"
CALL_KEY = "lamina_call"
"""Where the scope holds our id of the request, for what is behind the edge."""


class Exchange:
    """Carry one request through the gateway; every reply written here has the headers that every reply has."""

    __slots__ = (
        "_backend",
        "_lock",
        "cost_is_known",
        "first_event_at",
        "headers",
        "id",
        "is_started",
        "label",
        "model",
        "notes",
        "path",
        "receive",
        "received_at",
        "request_id",
        "scope",
        "send",
        "started",
        "status",
        "usage",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.started = time.monotonic()
        self.received_at = time.time()
        self.scope = scope
        # FastAPI looks at what follows the root path, so the edge has to as well: it guards the admin side.
        self.path: str = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        self.receive = receive
        self.send = send
        self._lock: asyncio.Lock | None = None
        self.headers = headers_of(scope)
        self.id = scope[CALL_KEY] = new_ulid()
        self.request_id = request_id_of(self.headers) or self.id
        self.notes = Notes()
        self.label = "other"
        self.model = ""
        self.status = 0
        self.usage: Usage | None = None
        self._backend: str | None = None
        self.first_event_at: float | None = None
        self.cost_is_known = False
        self.is_started = False

    def call(self, request: Request, *, tenant: str, controls: Controls) -> Call:
        """Make the call that this exchange is about; both write into the same notes."""
        return Call(
            id=self.id,
            request_id=self.request_id,
            tenant=tenant,
            request=request,
            received_at=self.received_at,
            started=self.started,
            controls=controls,
            notes=self.notes,
            trace=trace_of(self.headers),
        )

    def saw(self, event: Event) -> None:
        """Note an event of the answer: when the first one came, and what was used."""
        if self.first_event_at is None:
            self.first_event_at = time.monotonic()
        match event:
            case Start():
                self._backend = event.backend
            case Finish():
                self.usage = event.usage
            case Delta():
                pass

    def overhead_s(self) -> float:
        """Return the seconds up to the first event (or now) that no backend is to blame for."""
        until = self.first_event_at or time.monotonic()
        waited_ms = sum(attempt.duration_ms for attempt in self.notes.attempts)
        return max(0.0, until - self.started - waited_ms / 1000.0)

    def head(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """Complete a reply's headers by those on every reply."""
        if is_anthropic_path(self.path):
            headers = [*headers, (b"request-id", self.id.encode())]
        return [
            *headers,
            (b"x-request-id", self.request_id.encode()),
            (b"x-lamina-call", self.id.encode()),
            (b"x-lamina-overhead-ms", b"%.3f" % (self.overhead_s() * 1000.0)),
            *decision_headers(self.notes, backend=self._backend, now=time.time(), cost_is_known=self.cost_is_known),
        ]

    async def reply(self, status: int, body: bytes, *, content_type: bytes = JSON, headers: Headers = ()) -> None:
        """Send a whole reply."""
        own = (b"content-type", content_type), (b"content-length", b"%d" % len(body))
        await self._start(status, [*own, *headers])
        await self.send({"type": "http.response.body", "body": body})

    async def reply_early(self, status: int, body: bytes, *, headers: Headers = ()) -> None:
        """Send a reply while the request's body is still coming, and take a little more of it before closing.

        Closing with unread bytes resets the connection, and the client would never see the reply.
        """
        own = (b"content-type", JSON), (b"content-length", b"%d" % len(body)), (b"connection", b"close")
        await self._start(status, [*own, *headers])
        await self.send({"type": "http.response.body", "body": body, "more_body": True})
        if b"expect" not in self.headers:
            await self._discard(max_bytes=8 * 1024 * 1024, timeout_s=1.0)
        await self.send({"type": "http.response.body", "body": b""})

    async def send_piece(self, piece: bytes, *, headers: Headers = (), is_last: bool = False) -> None:
        """Send a piece of a streamed reply; the head goes out with the first one. Waits for a slow reader."""
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            if not self.is_started:
                await self._start(200, headers)
            await self.send({"type": "http.response.body", "body": piece, "more_body": not is_last})

    async def _start(self, status: int, headers: Headers) -> None:
        self.is_started = True
        self.status = status
        # Our server writes head and body as one where it knows that the body follows at once.
        await self.send(
            {"type": "http.response.start", "status": status, "headers": self.head(headers), BODY_FOLLOWS: True}
        )

    async def _discard(self, *, max_bytes: int, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                message = await self.receive()
                while message.get("more_body") and max_bytes > 0:
                    max_bytes -= len(message["body"])
                    message = await self.receive()
        except TimeoutError:
            return


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """Return the headers by name; several of one name are one list, as RFC 9110 says."""
    fields: list[tuple[bytes, bytes]] = scope["headers"]
    headers = dict(fields)
    if len(headers) == len(fields):
        return headers
    return {name: b", ".join(value for other, value in fields if other == name) for name in headers}
