"""A remote server that speaks OpenAI's API: a call's fields go out as they came, its answer comes back as events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

import orjson

from backends.openai_compatible.decode import AnswerDecoder, read_embeddings
from backends.openai_compatible.errors import build_error, read_fault, read_inner_status, read_retry_after
from backends.openai_compatible.sse import SseError, SseParser
from backends.openai_compatible.upstream import Reply, Upstream
from orchestration.core.call import Call
from orchestration.core.errors import BackendError, LaminaError
from orchestration.core.events import Delta, Event, Start
from orchestration.core.request import Kind, Request
from orchestration.core.secret import Secret

_PATHS = {Kind.CHAT: "chat/completions", Kind.COMPLETION: "completions", Kind.EMBEDDING: "embeddings"}
_MAX_FAULT_BYTES = 64 * 1024
_MAX_ANSWER_BYTES = 256 * 1024 * 1024
_HEALTH_TIMEOUT_S = 5.0
_DRAIN_S = 0.1


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long a call may take: to connect, to the first content of a stream, and as a whole."""

    connect_s: float = 5.0
    first_token_s: float = 60.0
    total_s: float = 600.0


@dataclass(slots=True)
class _Clock:
    """The deadline of the next wait: the first token's until content came, then the whole call's."""

    first_s: float
    total_s: float
    is_begun: bool = False

    def deadline(self) -> float:
        return self.total_s if self.is_begun else min(self.first_s, self.total_s)


class OpenAICompatibleBackend:
    """Pass calls on to `base_url`, which is what stands before `/chat/completions`.

    Every field that the client sent goes along; the model's name is replaced, and a stream is always asked for its
    usage. Headers do not go along: the key for this upstream stands in `Authorization` and nowhere else. Closing
    the generator closes the upstream's connection at once, whatever it was waiting for.
    """

    def __init__(
        self,
        *,
        base_url: str,
        name: str | None = None,
        upstream_model: str | None = None,
        api_key: Secret | None = None,
        timeouts: Timeouts | None = None,
    ) -> None:
        self._timeouts = timeouts or Timeouts()
        self._upstream = Upstream(base_url=base_url, name=name, api_key=api_key, connect_s=self._timeouts.connect_s)
        self._model = upstream_model
        self._api_key = api_key

    @property
    def name(self) -> str:
        """Name the backend."""
        return self._upstream.name

    async def __call__(self, call: Call, /) -> AsyncGenerator[Event, None]:
        """Answer the call; `Start` comes with the first content."""
        clock = self._start_clock(call)
        path = _PATHS.get(call.kind)
        if path is None:
            raise BackendError(f"{self.name} has no path for {call.kind} calls")
        reply = await self._upstream.post(path, self._build_body(call.request), deadline_s=clock.deadline())
        try:
            if reply.status != 200:
                raise await self._read_error(reply, deadline_s=clock.deadline())
            events = self._stream(call, reply, clock) if reply.is_event_stream else self._answer(call, reply, clock)
            async with aclosing(events):
                async for event in events:
                    yield event
        finally:
            await reply.aclose()

    async def check_health(self) -> str | None:
        """Ask for the list of models; any answer below 500 shows that somebody is there."""
        try:
            status = await self._upstream.get_status("models", timeout_s=_HEALTH_TIMEOUT_S)
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

    def _build_body(self, request: Request) -> bytes:
        body = {**request.fields, "model": self._upstream_model(request)}
        if request.is_streamed and request.kind is not Kind.EMBEDDING:
            body["stream_options"] = {**(request.fields.get("stream_options") or {}), "include_usage": True}
        return orjson.dumps(body)

    def _upstream_model(self, request: Request) -> str:
        return self._model or request.model

    async def _stream(self, call: Call, reply: Reply, clock: _Clock) -> AsyncGenerator[Event, None]:
        decoder = AnswerDecoder(call.kind, backend=self.name)
        start = Start(model=self._upstream_model(call.request), backend=self.name)
        chunks = self._read_chunks(reply, clock)
        async with aclosing(chunks):
            async for chunk, raw in chunks:
                for delta in self._decode_chunk(decoder, chunk, raw=raw):
                    if not clock.is_begun:
                        clock.is_begun = True
                        yield start
                    yield delta
        finish = decoder.finish()
        if not clock.is_begun:
            yield start
        yield finish

    async def _read_chunks(self, reply: Reply, clock: _Clock) -> AsyncGenerator[tuple[Mapping[str, Any], bytes], None]:
        """Give each frame's JSON and the frame itself, up to `[DONE]` or the end of the body."""
        parser = SseParser()
        pieces = reply.pieces(deadline=clock.deadline)
        async with aclosing(pieces):
            async for piece in pieces:
                try:
                    frames = parser.feed(piece)
                except SseError as exc:
                    raise self._complain(exc) from exc
                for frame in frames:
                    if frame.data.startswith(b"[DONE]"):
                        await _drain(pieces, clock)
                        return
                    yield self._parse(frame.data), frame.raw

    def _decode_chunk(self, decoder: AnswerDecoder, chunk: Mapping[str, Any], *, raw: bytes) -> list[Delta]:
        try:
            return decoder.read_chunk(chunk, raw=raw)
        except (AttributeError, LookupError, TypeError, ValueError) as exc:
            raise self._complain(exc) from exc

    async def _answer(self, call: Call, reply: Reply, clock: _Clock) -> AsyncGenerator[Event, None]:
        answer = self._parse(await reply.read(deadline_s=clock.total_s, limit_bytes=_MAX_ANSWER_BYTES))
        try:
            events = _decode_answer(call.kind, answer, backend=self.name)
        except (AttributeError, LookupError, TypeError, ValueError) as exc:
            raise self._complain(exc) from exc
        yield Start(model=self._upstream_model(call.request), backend=self.name)
        for event in events:
            yield event

    def _parse(self, data: bytes) -> Mapping[str, Any]:
        """Read a JSON object; raises what an error object in it stands for."""
        try:
            parsed = orjson.loads(data)
        except orjson.JSONDecodeError as exc:
            raise self._complain(exc) from exc
        if not isinstance(parsed, dict):
            raise self._complain(TypeError("no JSON object"))
        if parsed.get("error"):
            fault = read_fault(parsed, fallback="the answer broke off with an error")
            raise build_error(read_inner_status(parsed), fault, backend=self.name, api_key=self._api_key)
        return parsed

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

    def _complain(self, error: Exception) -> BackendError:
        return BackendError(f"{self.name} sent an answer that is not OpenAI's format: {type(error).__name__}")


def _decode_answer(kind: Kind, answer: Mapping[str, Any], *, backend: str) -> list[Event]:
    if kind is Kind.EMBEDDING:
        return read_embeddings(answer, backend=backend)
    decoder = AnswerDecoder(kind, backend=backend)
    return [*decoder.read_whole(answer), decoder.finish()]


async def _drain(pieces: AsyncGenerator[bytes, None], clock: _Clock) -> None:
    """Wait a moment for the body's end behind `[DONE]`: only a reply read to its end leaves the connection usable."""
    clock.total_s = asyncio.get_running_loop().time() + _DRAIN_S
    with suppress(BackendError):
        async for _ in pieces:
            pass
