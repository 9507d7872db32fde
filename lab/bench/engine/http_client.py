"""One streamed completion over a connection of its own, at as little cost to the machine as can be.

While a run goes on the bytes are only noted with their times; they are read after it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httptools

from lab.bench.engine.answer import Answer, Piece, read_stream


@dataclass(frozen=True, slots=True)
class Raw:
    """A reply as it came: its status, the pieces of its body, and what broke it off, if anything did."""

    begun_s: float
    ended_s: float
    status: int
    pieces: list[Piece]
    is_from_cache: bool
    fault: str | None = None

    def read(self) -> Answer:
        """Read the reply."""
        fault = self.fault
        if fault is None and self.status != 200:
            body = b"".join(data for _, data in self.pieces)
            fault = f"status {self.status}: {body[:160].decode(errors='replace')}"
        if fault is not None:
            return Answer(begun_s=self.begun_s, ended_s=self.ended_s, error=fault)
        return read_stream(self.pieces, begun_s=self.begun_s, ended_s=self.ended_s, is_from_cache=self.is_from_cache)


class CompletionClient:
    """Ask `/v1/completions` of the server at `url`, an `http://host:port`, for answers of exactly `max_tokens`."""

    def __init__(self, url: str, *, model: str, max_tokens: int, timeout_s: float, key: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"the address of a server is http://host:port, not '{url}'")
        self._host, self._port = parts.hostname, parts.port or 80
        self._path = parts.path.rstrip("/").removesuffix("/v1") + "/v1/completions"
        self._model = model
        self._max_tokens = max_tokens
        self._timeout_s = timeout_s
        self._key = key

    async def ask(self, prompt: str, *, max_tokens: int | None = None) -> Raw:
        """Send one request and follow its stream to the end; what breaks it off is in the reply, nothing is raised."""
        loop = asyncio.get_running_loop()
        begun_s = time.monotonic()
        protocol = _Reply(loop.create_future())
        transport: asyncio.Transport | None = None
        fault: str | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                transport, _ = await loop.create_connection(lambda: protocol, self._host, self._port)
                transport.write(self._request(prompt, max_tokens or self._max_tokens))
                await protocol.ended
        except TimeoutError:
            fault = f"no end within {self._timeout_s:g} s"
        except (OSError, httptools.HttpParserError) as exc:
            fault = f"{type(exc).__name__}: {exc}"
        finally:
            if transport is not None:
                transport.abort()
        return Raw(
            begun_s=begun_s,
            ended_s=protocol.ended_s or time.monotonic(),
            status=protocol.status,
            pieces=protocol.pieces,
            is_from_cache=protocol.is_from_cache,
            fault=fault,
        )

    def _request(self, prompt: str, max_tokens: int) -> bytes:
        body = json.dumps(self._fields(prompt, max_tokens)).encode()
        key = f"Authorization: Bearer {self._key}\r\n" if self._key else ""
        head = (
            f"POST {self._path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n{key}Content-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body

    def _fields(self, prompt: str, max_tokens: int) -> Mapping[str, Any]:
        return {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


class _Reply(asyncio.Protocol):
    """Note what comes and when."""

    def __init__(self, ended: asyncio.Future[None]) -> None:
        self.ended = ended
        self.ended_s = 0.0
        self.status = 0
        self.pieces: list[Piece] = []
        self.is_from_cache = False
        self._parser = httptools.HttpResponseParser(self)
        self._now_s = 0.0

    def data_received(self, data: bytes) -> None:
        self._now_s = time.monotonic()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as exc:
            self._end(exc)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or ConnectionError("the server closed the connection before the end"))

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-lamina-cache":
            self.is_from_cache = value in (b"exact", b"semantic")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self.pieces.append((self._now_s, data))

    def on_message_complete(self) -> None:
        self._end(None)

    def _end(self, exc: Exception | None) -> None:
        if self.ended.done():
            return
        self.ended_s = time.monotonic()
        if exc is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(exc)
