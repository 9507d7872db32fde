"""A load generator of raw sockets: it costs a tenth of what it measures, so that it is not what is measured."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_END_OF_CHUNKS = b"0\r\n\r\n"


@dataclass(slots=True)
class Timings:
    """What one run saw, in seconds; `gaps_s` are the longest waits between two pieces of each stream."""

    latencies_s: list[float] = field(default_factory=list)
    firsts_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    num_errors: int = 0
    wall_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go: an address that ends in `/v1`, and headers."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def address(self) -> tuple[str, int]:
        """Return host and port."""
        parts = urlsplit(self.url)
        assert parts.hostname is not None, "a URL with a host"
        return parts.hostname, parts.port or 80

    def request(self, body: bytes) -> bytes:
        """Write a whole request."""
        host, port = self.address
        lines = [
            f"POST {urlsplit(self.url).path}/chat/completions HTTP/1.1",
            f"host: {host}:{port}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            *(f"{name}: {value}" for name, value in self.headers.items()),
        ]
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


class Connection(asyncio.Protocol):
    """Send one request after the other, each when the last one is answered, until `next_request` gives None."""

    def __init__(self, next_request: Callable[[], bytes | None], timings: Timings) -> None:
        self._next_request = next_request
        self._timings = timings
        self._transport: asyncio.Transport | None = None
        self._head = b""
        self._left = 0
        self._is_chunked = False
        self._tail = b""
        self._sent_at = self._seen_at = self._gap_s = 0.0
        self._has_content = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's are none by their class
        self._send()

    def data_received(self, data: bytes) -> None:
        """Follow the reply; at its end the next request goes out."""
        if not self._left and not self._is_chunked:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            data = self._head[end + 4 :]
            self._begin_body(self._head[:end].lower())
        if self._is_chunked:
            self._take_pieces(data)
        else:
            self._left -= len(data)
        if (self._is_chunked and self._tail == _END_OF_CHUNKS) or (not self._is_chunked and self._left <= 0):
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count a reply that was cut off."""
        if not self.ended.done():
            self._timings.num_errors += 1
            self.ended.set_result(None)

    def _begin_body(self, head: bytes) -> None:
        if not head.startswith(b"http/1.1 200"):
            self._timings.num_errors += 1
        self._is_chunked = b"transfer-encoding: chunked" in head
        if not self._is_chunked:
            self._left = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0])

    def _take_pieces(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self._has_content and b"word" in data:
            self._has_content = True
            self._timings.firsts_s.append(now - self._sent_at)
        elif self._has_content:
            self._gap_s = max(self._gap_s, now - self._seen_at)
        self._seen_at = now
        self._tail = (self._tail + data)[-len(_END_OF_CHUNKS) :]

    def _finish(self) -> None:
        self._timings.latencies_s.append(time.perf_counter() - self._sent_at)
        if self._is_chunked:
            self._timings.gaps_s.append(self._gap_s)
        self._send()

    def _send(self) -> None:
        assert self._transport is not None, "connected"
        request = self._next_request()
        if request is None:
            if not self.ended.done():
                self.ended.set_result(None)
            self._transport.abort()
            return
        self._head, self._tail, self._left, self._is_chunked = b"", b"", 0, False
        self._has_content, self._gap_s = False, 0.0
        self._sent_at = time.perf_counter()
        self._transport.write(request)


async def run_load(
    target: Target,
    body_of: Callable[[int], bytes],
    *,
    concurrency: int,
    num_requests: int | None = None,
    seconds: float | None = None,
) -> Timings:
    """Run a closed loop of `concurrency` clients for so many requests, or for so long; loopback only."""
    host, port = target.address
    if host not in ("127.0.0.1", "localhost"):
        raise ValueError("load is sent to loopback addresses only")
    numbers = itertools.count()
    timings = Timings()
    stop_at = time.perf_counter() + (seconds if seconds is not None else 3600.0)

    def next_request() -> bytes | None:
        number = next(numbers)
        is_over = time.perf_counter() >= stop_at or (num_requests is not None and number >= num_requests)
        return None if is_over else target.request(body_of(number))

    begun = time.perf_counter()
    loop = asyncio.get_running_loop()
    opened = await asyncio.gather(
        *(loop.create_connection(lambda: Connection(next_request, timings), host, port) for _ in range(concurrency))
    )
    await asyncio.gather(*(connection.ended for _, connection in opened))
    timings.wall_s = time.perf_counter() - begun
    return timings
