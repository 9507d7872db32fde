"""One HTTP/1.1 connection to an upstream, on which one request is answered after the other.

httpx takes some 1.5 ms of CPU for a request over a kept connection; this takes a tenth of a millisecond
(docs/decisions/0006-our-own-http-client.md).
"""

from __future__ import annotations

import asyncio
import select
import zlib
from typing import cast

import httptools

_MAX_HEAD_BYTES = 64 * 1024
_PAUSE_FROM_BYTES = 256 * 1024
_MAX_UNPACKED_BYTES = 1024 * 1024
_PACKINGS = ("gzip", "x-gzip", "deflate")
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


class ConnectionBroke(Exception):
    """The connection ended before the answer did, or what came is no HTTP; the message says what happened."""


class DeadlineOver(Exception):
    """The deadline of a wait has passed."""


class Connection(asyncio.Protocol):
    """Send a request with `begin`, then read its answer's head and body; both wait until `deadline_s` at most.

    A body that nobody reads is buffered up to a bound, then the connection is read no further. One timer serves all
    waits: it looks again where the deadline has moved meanwhile.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.is_reusable = False
        self.idle_since_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._num_buffered = 0
        self._head_bytes = 0
        self._has_head = self._is_whole = True
        self._is_paused = self._is_lost = False
        self._fault: str | None = None
        self._unpacker: zlib._Decompress | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._deadline_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        """Tell whether another request may be sent."""
        return not self._is_lost and self._transport is not None and not self._transport.is_closing()

    def begin(self, request: bytes) -> None:
        """Send a whole request; the answer before it was read to its end."""
        assert self._is_whole, "one request at a time"
        assert self._transport is not None, "connected"
        self.status, self.headers = 0, {}
        self._pieces, self._num_buffered, self._head_bytes = [], 0, 0
        self._has_head = self._is_whole = self.is_reusable = False
        self._unpacker = None
        self._transport.write(request)

    async def read_head(self, *, deadline_s: float) -> None:
        """Wait for `status` and `headers`; raises `ConnectionBroke` and `DeadlineOver`."""
        while not self._has_head:
            self._raise_fault()
            await self._wait(deadline_s)

    async def read_piece(self, *, deadline_s: float) -> bytes:
        """Return what of the body has come, unpacked, at least a byte of it; nothing at its end."""
        while not self._pieces:
            if self._is_whole:
                return b""
            self._raise_fault()
            await self._wait(deadline_s)
        pieces, self._pieces, self._num_buffered = self._pieces, [], 0
        if self._is_paused:
            self._is_paused = False
            assert self._transport is not None, "it was read from"
            self._transport.resume_reading()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def was_closed(self) -> bool:
        """Look whether the server has closed a connection that lay idle, though the loop has not heard of it yet."""
        assert self._transport is not None, "connected"
        socket = self._transport.get_extra_info("socket")
        poll = select.poll()
        poll.register(socket.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def abort(self) -> None:
        """Close the connection at once, whatever is under way."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are none by their class

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        if self._is_whole:  # nobody asked
            self._fail("it said something unasked")
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            self._fail(f"it sent no HTTP ({type(exc).__name__})")
        if self._num_buffered > _PAUSE_FROM_BYTES and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """End: a body without a length is whole now, any other one is broken."""
        self._is_lost, self.is_reusable = True, False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        has_length = "content-length" in self.headers or "transfer-encoding" in self.headers
        if self._has_head and not self._is_whole and not has_length and exc is None and self._fault is None:
            self._is_whole = True
        elif not self._is_whole:
            self._fault = self._fault or "it closed the connection"
        del self._parser  # it knows this connection
        self._wake()

    # Below: the parser's calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header; of those of one name the last counts."""
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > _MAX_HEAD_BYTES:
            raise ValueError("the head is too long")
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Take the head's end."""
        self.status = self._parser.get_status_code()
        if 100 <= self.status < 200:
            return
        packing = self.headers.get("content-encoding", "identity").lower()
        if packing in _PACKINGS:
            self._unpacker = zlib.decompressobj(_GZIP_OR_ZLIB)
        elif packing != "identity":
            raise ValueError("the body is packed in a way that was not asked for")
        self._has_head = True
        self._wake()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        if self._unpacker is not None:
            body = self._unpacker.decompress(body, _MAX_UNPACKED_BYTES)
            if self._unpacker.unconsumed_tail:
                raise ValueError("the body grows too much when it is unpacked")
        if body:
            self._pieces.append(body)
            self._num_buffered += len(body)
            self._wake()

    def on_message_complete(self) -> None:
        """Take the answer's end; one of 1xx only announces the answer."""
        if 100 <= self.status < 200:
            self.status, self.headers = 0, {}
            return
        self._is_whole = True
        self.is_reusable = bool(self._parser.should_keep_alive())
        self._wake()

    def _fail(self, fault: str) -> None:
        self._fault = self._fault or fault
        self.is_reusable = False
        self.abort()
        self._wake()

    def _raise_fault(self) -> None:
        if self._fault is not None:
            raise ConnectionBroke(self._fault)

    async def _wait(self, deadline_s: float) -> None:
        """Wait until something came; raises `DeadlineOver`."""
        self._deadline_s = deadline_s
        if self._timer is None or self._timer.when() > deadline_s:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(deadline_s, self._look)
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _look(self) -> None:
        """End a wait that is over; else look again when the present one will be."""
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if self._loop.time() >= self._deadline_s:
            self._waiter.set_exception(DeadlineOver())
        else:
            self._timer = self._loop.call_at(self._deadline_s, self._look)
