"""Uvicorn's HTTP protocol with the costly parts of a reply done in one step: one write where it makes two."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

BODY_FOLLOWS = "lamina.body_follows"
"""The key of `http.response.start` that says: the body's first message comes at once, so both are one write."""
MAX_HEAD_BYTES = 512 * 1024
"""How much of a request's head is read, give or take what comes in one piece."""
_OFFERS = frozenset({b"upgrade", b"http2-settings"})


class LeanCycle(RequestResponseCycle):
    """One request and its reply.

    Each write is a system call that wakes the client, so a head waits for its body where that follows at once,
    and the pieces of a stream that are ready together go out together. The
    headers are checked as a whole: whatever they hold, there are no more lines than headers.
    """

    _held = b""
    _ends_with_connection = False
    _gathered: list[bytes] | None = None
    _num_gathered = 0

    async def send(self, message: Any) -> None:
        """Take an ASGI message; waits for a slow reader."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if self.response_started and self.response_complete:
            raise RuntimeError(f"{message['type']} came after the reply's end")
        if not self.response_started:
            self._begin(message)
        else:
            self._go_on(message.get("body", b""), is_last=not message.get("more_body", False))

    def _begin(self, message: Any) -> None:
        if message["type"] != "http.response.start":
            raise RuntimeError(f"{message['type']} came before http.response.start")
        self.response_started = True
        self.waiting_for_100_continue = False
        head = self._head(message["status"], [*self.default_headers, *message.get("headers", ())])
        if BODY_FOLLOWS in message:
            self._held = head
        else:
            self.transport.write(head)

    def _head(self, status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
        said = dict(headers)  # ASGI has names in lower case
        length = said.get(b"content-length")
        if length is not None:
            self.expected_content_length, self.chunked_encoding = int(length), False
        elif said.get(b"transfer-encoding", b"").lower() == b"chunked":
            self.expected_content_length, self.chunked_encoding = 0, True
        if b"close" in said.get(b"connection", b"").lower():
            self.keep_alive = False
            headers = [pair for pair in headers if pair[0] != b"connection"]
        lines = [STATUS_LINE[status], *[b"%b: %b\r\n" % pair for pair in headers]]
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        if self.chunked_encoding is None and self.scope["method"] != "HEAD" and status not in (204, 304):
            self._frame_body(lines)
        head = b"".join(lines)
        if head.count(b"\r") != len(lines) or head.count(b"\n") != len(lines):
            raise RuntimeError("a header holds a line's end")
        return head + b"\r\n"

    def _frame_body(self, lines: list[bytes]) -> None:
        """Say where a body of unknown length ends: HTTP/1.0 knows no chunks, there it ends with the connection."""
        if self.scope["http_version"] == "1.0":
            self._ends_with_connection = True
        else:
            self.chunked_encoding = True
            lines.append(b"transfer-encoding: chunked\r\n")

    def _go_on(self, body: bytes, *, is_last: bool) -> None:
        if self.scope["method"] == "HEAD":
            self.expected_content_length, body = 0, b""
        elif not self.chunked_encoding and not self._ends_with_connection:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0 or (is_last and self.expected_content_length):
                raise RuntimeError("the body is not as long as content-length says")
        elif not is_last:
            self._gather(body)
            return
        self._write(body, is_last=is_last)
        if is_last:
            self._end()

    def _gather(self, piece: bytes) -> None:
        """Keep a piece of a stream until this turn of the event loop is over: what is ready then is one write."""
        if self._gathered is None:
            self._gathered = []
            asyncio.get_running_loop().call_soon(self._write, b"")
        self._gathered.append(piece)
        self._num_gathered += len(piece)
        if self._num_gathered >= HIGH_WATER_LIMIT:
            self._write(b"")

    def _write(self, body: bytes, *, is_last: bool = False) -> None:
        """Write the head where it waits, what was gathered, and the body."""
        head, self._held = self._held, b""
        if self._gathered is not None:
            body = b"".join([*self._gathered, body])
            self._gathered, self._num_gathered = None, 0
        if self.chunked_encoding and self.scope["method"] != "HEAD":
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if is_last:
                body += b"0\r\n\r\n"
        data = head + body if head else body
        if data and not self.transport.is_closing():
            self.transport.write(data)

    def _end(self) -> None:
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()


class LeanProtocol(HttpToolsProtocol):
    """Uvicorn's protocol (parsing, pipelining, draining, WebSockets) around a `LeanCycle`.

    A connection has one timer, which looks anew where the connection was used meanwhile. A client that sends
    nothing is given the time of one that keeps its connection, one that never ends a request's head twice that; a head
    of more than `MAX_HEAD_BYTES` is refused. An offer to go on in another protocol than WebSocket's is not taken up,
    as RFC 9110 (7.8) allows: the request is answered as it stands, body included.
    """

    _idle_since_s: float | None = None
    _is_in_head = True
    _head_room = MAX_HEAD_BYTES
    _late_scope: object = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, and wait for the first request no longer than for another one."""
        super().connection_made(cast("asyncio.Transport", transport))
        self._idle_since_s = self.loop.time()
        self._look_in(self.timeout_keep_alive)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        super().connection_lost(exc)
        self._look_no_more()

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over: how long it may lie idle is the socket's protocol's business from here on."""
        self._look_no_more()
        super().handle_websocket_upgrade()

    def data_received(self, data: bytes) -> None:
        """Read on; what is no HTTP, or a head without an end, is refused and the connection closed."""
        self._idle_since_s = None
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._refuse(400, b"Invalid HTTP request received.")
        except httptools.HttpParserUpgrade as exc:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            elif self.scope["method"] == "CONNECT":
                self._refuse(400, b"This is no proxy.")
            else:
                self._start_over(data[exc.args[0] :])
        else:
            if self._is_in_head:
                self._head_room -= len(data)
                if self._head_room < 0:
                    self._refuse(431, b"The request's headers are too large.")

    def on_response_complete(self) -> None:
        """Go on with the next request, or wait for one."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
            return
        self._idle_since_s = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._look_in(self.timeout_keep_alive)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that lies idle for too long."""
        self.timeout_keep_alive_task = None
        if self._idle_since_s is None:
            self._look_at_head()
            return
        left_s = self._idle_since_s + self.timeout_keep_alive - self.loop.time()
        if left_s > 0.01:
            self._look_in(left_s)
        else:
            super().timeout_keep_alive_handler()

    def _look_at_head(self) -> None:
        """Close a connection whose head is still the one that was looked at the time before."""
        if self.cycle is not None and not self.cycle.response_complete:
            return  # a request is being answered; its end looks in again
        if self._late_scope is self.scope:
            self.transport.close()
            return
        self._late_scope = self.scope
        self._look_in(self.timeout_keep_alive)

    def _look_no_more(self) -> None:
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None

    def _look_in(self, delay_s: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(delay_s, self.timeout_keep_alive_handler)

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since_s = None

    def on_headers_complete(self) -> None:
        """Begin to answer, or queue the request behind the one that is being answered."""
        http_version = self.parser.get_http_version()
        self._is_in_head = False
        self.scope["method"] = self.parser.get_method().decode("ascii")
        if http_version != "1.1":
            self.scope["http_version"] = http_version
        if self.parser.should_upgrade():
            return  # `data_received` hears of it next
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        if "%" in path:
            path = unquote(path)
        scope = self.scope
        scope["path"], scope["raw_path"], scope["query_string"] = path, url.path, url.query or b""
        before = self.cycle
        self.cycle = LeanCycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=http_version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def on_message_complete(self) -> None:
        """Tell the reply that its request has come whole; a head may follow."""
        self._is_in_head, self._head_room = True, MAX_HEAD_BYTES
        if self.parser.should_upgrade() or self.cycle.response_complete:
            return
        self.cycle.more_body = False
        self.cycle.message_event.set()

    def _start_over(self, rest: bytes) -> None:
        """Read the request again without its offer of another protocol: the parser stops where one is made."""
        lines = [b"%b %b HTTP/%b\r\n" % (self.scope["method"].encode(), self.url, self.scope["http_version"].encode())]
        for name, value in self.headers:
            if name == b"connection":
                value = b",".join(word for word in value.split(b",") if word.strip().lower() not in _OFFERS)
            if name not in _OFFERS and (value or name != b"connection"):
                lines.append(b"%b: %b\r\n" % (name, value))
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"".join([*lines, b"\r\n", rest]))

    def _refuse(self, status: int, message: bytes) -> None:
        """Close the connection, with a reply where none is being written."""
        if self.cycle is None or self.cycle.response_complete:
            head = b"content-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            self.transport.write(STATUS_LINE[status] + head % len(message) + message)
        self.transport.close()
