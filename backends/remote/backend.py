"""A remote server as a backend: a call goes out in its format, its answer comes back as events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

import orjson

from backends.remote.errors import build_error, read_fault, read_retry_after
from backends.remote.frames import joined
from backends.remote.sse import SseError, SseParser
from backends.remote.upstream import Reply, Upstream
from backends.remote.wire import Ask, Decoder, Wire, WireFault
from orchestration.core.call import Call
from orchestration.core.errors import BackendError, LaminaError
from orchestration.core.events import Delta, Event
from orchestration.core.notes import DROPPED_PARAMS
from orchestration.core.secret import Secret

_MAX_FAULT_BYTES = 64 * 1024
_MAX_ANSWER_BYTES = 256 * 1024 * 1024
_HEALTH_TIMEOUT_S = 5.0
_DRAIN_S = 0.1
_FAULTS = (WireFault, SseError, AttributeError, LookupError, TypeError, ValueError)
"""What reading an answer raises: all but the first say that it is not the format."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a call may take: to connect, to the first content of a stream, and as a whole."""

    connect_s: float = 5.0
    first_token_s: float = 60.0
    total_s: float = 600.0


@dataclass(slots=True)
class _Clock:
    """The deadline of the next wait: the first token's until content came, then the whole call's.

    `is_over` tells that the mark behind a stream's content has come.
    """

    first_s: float
    total_s: float
    is_begun: bool = False
    is_over: bool = False

    def deadline(self) -> float:
        return self.total_s if self.is_begun else min(self.first_s, self.total_s)


class RemoteBackend:
    """Pass calls on in the server's format.

    Headers do not go along, but for those that the format itself reads and the caller's trace: our key for this
    server is the only one that it sees, and no error's message holds it. Closing the generator closes the connection
    at once, whatever it was waiting for.
    """

    def __init__(self, wire: Wire, upstream: Upstream, *, api_key: Secret | None, timeouts: Timeouts) -> None:
        self._wire = wire
        self._upstream = upstream
        self._api_key = api_key
        self._timeouts = timeouts

    @property
    def name(self) -> str:
        """Name the backend."""
        return self._upstream.name

    async def __call__(self, call: Call, /) -> AsyncGenerator[Event, None]:
        """Answer the call; `Start` comes with the first content."""
        clock = self._start_clock(call)
        ask = self._wire.ask(call.request, backend=self.name)
        if ask.dropped:
            call.notes.extra[DROPPED_PARAMS] = list(ask.dropped)
        while ask.then is not None:
            ask = await self._go_on(ask, ask.then, clock)
        headers = ask.headers if call.trace is None else {**ask.headers, **call.trace.headers(call.id)}
        reply = await self._upstream.post(ask.path, ask.body, headers=headers, deadline_s=clock.deadline())
        try:
            if reply.status != 200:
                raise await self._read_error(reply, deadline_s=clock.deadline())
            decoder = self._wire.decoder(call.request, backend=self.name)
            if reply.is_event_stream:
                async with aclosing(self._stream(decoder, reply, clock)) as events:
                    async for event in events:
                        yield event
            else:
                for event in await self._answer(decoder, reply, clock):
                    yield event
        finally:
            reply.close()

    async def check_health(self) -> str | None:
        """Ask for something small; any answer below 500 shows that somebody is there."""
        try:
            status = await self._upstream.get_status(self._wire.health_path, timeout_s=_HEALTH_TIMEOUT_S)
        except LaminaError as exc:
            return exc.message
        return None if status < 500 else f"{self.name} answers {status}"

    async def aclose(self) -> None:
        """Close every connection."""
        await self._upstream.aclose()

    def _start_clock(self, call: Call) -> _Clock:
        """A whole answer has no first token: only the whole call's limit counts for it."""
        now_s = asyncio.get_running_loop().time()
        first_s = self._timeouts.first_token_s if call.request.is_streamed else self._timeouts.total_s
        return _Clock(first_s=now_s + first_s, total_s=now_s + self._timeouts.total_s)

    async def _go_on(self, ask: Ask, then: Callable[[Any], Ask], clock: _Clock) -> Ask:
        """Ask for what the next request is made of."""
        reply = await self._upstream.post(ask.path, ask.body, headers=ask.headers, deadline_s=clock.deadline())
        try:
            if reply.status != 200:
                raise await self._read_error(reply, deadline_s=clock.deadline())
            return then(orjson.loads(await reply.read(deadline_s=clock.total_s, limit_bytes=_MAX_ANSWER_BYTES)))
        except _FAULTS as exc:
            raise self._told(exc) from exc
        finally:
            reply.close()

    async def _stream(self, decoder: Decoder, reply: Reply, clock: _Clock) -> AsyncGenerator[Event, None]:
        parser = SseParser()
        while not clock.is_over:
            piece = await reply.read_piece(deadline_s=clock.deadline())
            if not piece:
                break
            for delta in self._read_deltas(decoder, parser, piece, clock):
                if not clock.is_begun:
                    clock.is_begun = True
                    yield decoder.start
                yield delta
        if clock.is_over:
            await _drain(reply)
        finish = decoder.finish()
        if not clock.is_begun:
            yield decoder.start
        yield finish

    def _read_deltas(self, decoder: Decoder, parser: SseParser, piece: bytes, clock: _Clock) -> Iterator[Delta]:
        """Read what a piece of the body brought, up to the mark behind the content or to an error."""
        found: list[Delta] = []
        fault: Exception | None = None
        try:
            for frame in parser.feed(piece):
                if decoder.is_end(frame):
                    clock.is_over = True
                    break
                found += decoder.read_frame(frame)
        except _FAULTS as exc:
            fault = exc
        yield from joined(found)
        if fault is not None:
            try:
                raise self._told(fault) from fault
            finally:
                fault = None  # its trace leads back here: a cycle with all that the call holds

    async def _answer(self, decoder: Decoder, reply: Reply, clock: _Clock) -> list[Event]:
        body = await reply.read(deadline_s=clock.total_s, limit_bytes=_MAX_ANSWER_BYTES)
        try:
            return [decoder.start, *decoder.read_whole(body)]
        except _FAULTS as exc:
            raise self._told(exc) from exc

    def _told(self, fault: Exception) -> LaminaError:
        """Turn what an answer raises into our errors: an error that it holds, or that it is not the format."""
        if not isinstance(fault, WireFault):
            kind = type(fault).__name__
            return BackendError(f"{self.name} sent an answer that is not {self._wire.title} format: {kind}")
        words = read_fault(fault.body, fallback="the answer broke off with an error")
        return build_error(fault.status, words, backend=self.name, api_key=self._api_key)

    async def _read_error(self, reply: Reply, *, deadline_s: float) -> LaminaError:
        body = await reply.read(deadline_s=deadline_s, limit_bytes=_MAX_FAULT_BYTES)
        try:
            parsed = orjson.loads(body)
        except orjson.JSONDecodeError:
            parsed = None  # a proxy's page, or nothing
        return build_error(
            reply.status,
            read_fault(parsed, fallback=f"it answered {reply.status}"),
            backend=self.name,
            api_key=self._api_key,
            retry_after_s=read_retry_after(reply.headers),
        )


async def _drain(reply: Reply) -> None:
    """Wait a moment for the body's end behind its mark: only a reply read to its end leaves the connection usable."""
    deadline_s = asyncio.get_running_loop().time() + _DRAIN_S
    with suppress(BackendError):
        while await reply.read_piece(deadline_s=deadline_s):
            pass
