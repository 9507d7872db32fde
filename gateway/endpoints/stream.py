"""WebSocket `/v1/stream`: prompt in, tokens out, `done`; one call after another on one connection.

A message is one JSON object. In: a chat request as for `/v1/chat/completions` (or `prompt`, see `request_of`), with
`headers` for what HTTP has in headers; `{"type": "cancel"}`; `{"type": "auth", "key": ...}` from clients that cannot
set a header, which is what browsers are. Out: `start`, then `token` (`reasoning`, `refusal`, `tool_call`), then one of
`done`, `error`, `cancelled`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any

import orjson

from gateway.access import Gatekeeper
from gateway.body import parse_object
from gateway.body_cache import take_cache
from gateway.endpoints import stream_messages as messages
from gateway.endpoints.generation import cut_off, fault_of
from gateway.error_body import error_body, error_headers, status_of
from gateway.exchange import Exchange, Receive, Scope, Send, headers_of
from gateway.http_errors import CallRunning, ClientLeft, Stopping
from gateway.metrics import Metrics
from orchestration.core import Call, Delta, Finish, Handler, Start
from orchestration.core.errors import InvalidRequest, LaminaError, Unauthorized

PATH = "/v1/stream"
AUTH_S = 10.0
"""How long a socket that has no key, where one is needed, waits for one."""
_LAST_WORD_S = 1.0
POLICY_VIOLATION, GOING_AWAY, SERVICE_RESTART = 1008, 1001, 1012


class Stream:
    """Serve sockets until `ending` is set: each then ends after its running answer, 1001 where the process drains,
    1012 where newer settings are in use and the client should connect again.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        gatekeeper: Gatekeeper,
        metrics: Metrics,
        models: Sequence[str],
        ending: asyncio.Event,
        is_draining: Callable[[], bool],
        auth_s: float = AUTH_S,
    ) -> None:
        self.handler = handler
        self.gatekeeper = gatekeeper
        self.metrics = metrics
        self.models = models
        self.ending = ending
        self.is_draining = is_draining
        self.auth_s = auth_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one socket; a handshake from elsewhere, or with a wrong key, is refused with an error's status."""
        headers = headers_of(scope)
        is_let_in = True
        try:
            self.gatekeeper.check_site(headers)
            self.gatekeeper.tenant_of(headers)
        except Unauthorized as exc:
            if b"authorization" in headers or b"x-api-key" in headers:
                await _refuse(scope, send, exc)
                return
            is_let_in = False
        except LaminaError as exc:
            await _refuse(scope, send, exc)
            return
        await _Socket(self, headers, receive, send, is_let_in=is_let_in).run()


class _Socket:
    """One connection: at most one call runs at a time, in a task of its own, so that `cancel` is heard meanwhile."""

    def __init__(
        self, stream: Stream, headers: dict[bytes, bytes], receive: Receive, send: Send, *, is_let_in: bool
    ) -> None:
        self._stream = stream
        self._headers = headers
        self._receive = receive
        self._send = send
        self._is_let_in = is_let_in
        self._patience: asyncio.Timeout | None = None
        self._running: asyncio.Task[None] | None = None
        self._call_id: str | None = None
        """The call that runs; None as soon as its end is being told."""

    async def run(self) -> None:
        """Serve until the client leaves or the socket is to end; whatever runs then is cancelled."""
        await self._receive()  # websocket.connect
        await self._send({"type": "websocket.accept"})
        tasks = [asyncio.create_task(self._read(), name="read"), asyncio.create_task(self._close_in_time(), name="end")]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await _briefly(self._stop(tasks))
            await _briefly(self._close(GOING_AWAY, "the gateway is being stopped"))
            raise
        finally:
            await self._stop(tasks)

    async def _stop(self, tasks: list[asyncio.Task[None]]) -> None:
        running = [*tasks, *([] if self._running is None else [self._running])]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _read(self) -> None:
        while (message := await self._receive())["type"] != "websocket.disconnect":
            try:
                text = message.get("text")
                await self._take(parse_object(text.encode() if text is not None else message.get("bytes") or b""))
            except LaminaError as exc:
                await self._say(messages.error_message(exc, call=None))

    async def _take(self, fields: dict[str, Any]) -> None:
        match fields.pop("type", "request"):
            case "request":
                await self._begin(fields)
            case "cancel":
                await self._cancel()
            case "auth":
                await self._authenticate(fields.get("key"))
            case other:
                raise InvalidRequest(
                    f"Invalid 'type': expected request, cancel or auth, but got {str(other)[:32]!r}.", param="type"
                )

    async def _authenticate(self, key: Any) -> None:
        if not isinstance(key, str) or not key.isascii():
            raise InvalidRequest("Invalid 'key': expected the API key as a string.", param="key")
        headers = {**self._headers, b"authorization": b"Bearer " + key.encode()}
        try:
            self._stream.gatekeeper.tenant_of(headers)
        except Unauthorized as exc:
            await self._say(messages.error_message(exc, call=None))
            await self._close(POLICY_VIOLATION, "the key is wrong")
            return
        self._headers = headers
        self._let_in()
        await self._say({"type": "authenticated"})

    def _let_in(self) -> None:
        if not self._is_let_in and self._patience is not None:
            self._patience.reschedule(None)
        self._is_let_in = True

    async def _begin(self, fields: dict[str, Any]) -> None:
        if self._call_id is not None:
            raise CallRunning("A call is running on this socket; wait for its end, cancel it, or open another socket.")
        if self._stream.ending.is_set():
            raise Stopping("This socket is about to close; connect again.")
        if self._running is not None:
            await asyncio.wait([self._running])  # it is telling its end to a client that reads slowly
        exchange = Exchange({"type": "websocket", "path": PATH, "headers": []}, self._receive, self._send)
        exchange.label = PATH
        self._call_id = exchange.id
        self._running = asyncio.create_task(self._answer(exchange, fields), name=f"stream-{exchange.id}")

    async def _cancel(self) -> None:
        call_id, running = self._call_id, self._running
        if call_id is not None and running is not None:
            running.cancel()
            await asyncio.wait([running])
        await self._say({"type": "cancelled", "call": call_id})

    async def _answer(self, exchange: Exchange, fields: dict[str, Any]) -> None:
        """Answer one request, and tell its end once the layers have finished their part of it."""
        exchange.status = 499
        try:
            end = await self._write_events(exchange, fields)
            exchange.status = 200
        except ClientLeft:
            return
        except LaminaError as exc:
            end = self._failed(exchange, exc)
        except Exception as exc:  # the socket goes on: the client hears where to look
            end = self._failed(exchange, fault_of(exc, exchange.id))
        finally:
            self._call_id = None
            self._stream.metrics.observe(exchange)
        with suppress(ClientLeft):
            await self._say(end)

    def _failed(self, exchange: Exchange, error: LaminaError) -> messages.Message:
        exchange.status = status_of(error)
        return messages.error_message(error, call=exchange.id)

    async def _write_events(self, exchange: Exchange, fields: dict[str, Any]) -> messages.Message:
        call = self._call_of(exchange, fields)
        end = None
        with self._stream.metrics.in_flight(PATH):
            async with aclosing(self._stream.handler(call)) as events:
                async for event in events:
                    exchange.saw(event)
                    match event:
                        case Start():
                            await self._say(messages.start_message(exchange, event))
                        case Delta():
                            for message in messages.delta_messages(event):
                                await self._say(message)
                        case Finish():
                            end = event
        if end is None:
            raise cut_off()
        return messages.done_message(exchange, end)

    def _call_of(self, exchange: Exchange, fields: dict[str, Any]) -> Call:
        gatekeeper = self._stream.gatekeeper
        tenant = gatekeeper.tenant_of(self._headers)  # anew for each call: keys are revoked and expire
        controls, request_id = messages.controls_and_id(messages.headers_of_message(fields))
        exchange.request_id = request_id or exchange.id
        request = messages.request_of(fields, models=self._stream.models)
        request, controls = take_cache(request, controls)
        exchange.model = request.model
        gatekeeper.check_model(tenant, request.model)
        return exchange.call(request, tenant=tenant, controls=controls)

    async def _close_in_time(self) -> None:
        try:
            async with asyncio.timeout(None if self._is_let_in else self._stream.auth_s) as self._patience:
                await self._stream.ending.wait()
        except TimeoutError:
            await self._close(POLICY_VIOLATION, "no key came in time")
            return
        if self._running is not None:
            await asyncio.wait([self._running])
        if self._stream.is_draining():
            await self._close(GOING_AWAY, "the gateway is being stopped")
        else:
            await self._close(SERVICE_RESTART, "new settings are in use; connect again")

    async def _say(self, message: messages.Message) -> None:
        """Send one message; waits for a slow reader. Raises `ClientLeft`."""
        try:
            await self._send({"type": "websocket.send", "text": orjson.dumps(message).decode()})
        except OSError as exc:
            raise ClientLeft from exc

    async def _close(self, code: int, reason: str) -> None:
        with suppress(OSError):
            await self._send({"type": "websocket.close", "code": code, "reason": reason})


async def _briefly(work: Awaitable[None]) -> None:
    """Do what must not hold up a stop."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LAST_WORD_S):
            await work


async def _refuse(scope: Scope, send: Send, error: LaminaError) -> None:
    """Answer the handshake with an error's status and body where the server can, else with its own 403."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        return
    body = error_body(error)
    own = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    headers = [*own, *error_headers(error)]
    await send({"type": "websocket.http.response.start", "status": status_of(error), "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})
