"""One connection to Redis or Valkey on which many commands are under way at once, answered in their order.

redis.asyncio takes a connection of its own for each command, and some 130 us of CPU for it; here it is 10 to 20 us, and
commands that are sent in one turn of the event loop share their system calls.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Mapping
from typing import Any, cast

import hiredis
from redis.connection import parse_url

from cache.store import StoreDown

MAX_UNDER_WAY = 10_000


class Link(asyncio.Protocol):
    """Send commands and hand out their answers; a server silent for `timeout_s` loses the connection.

    At most `MAX_UNDER_WAY` commands wait; one more raises `StoreDown` at once. With the connection every waiting
    command is lost: whether it ran is not known.
    """

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._reader = hiredis.Reader()
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._packed: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._is_silent = False

    @property
    def is_open(self) -> bool:
        """Tell whether commands can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, *words: str | int | bytes) -> asyncio.Future[Any]:
        """Send a command; its answer is a value of RESP2, errors as `hiredis.ReplyError` values."""
        if not self.is_open or len(self._waiting) >= MAX_UNDER_WAY:
            raise StoreDown("the key-value store is not connected, or takes no more")
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.append((answer, self._loop.time()))
        if not self._packed:
            self._loop.call_soon(self._flush)
        self._packed.append(hiredis.pack_command(words))
        if self._watch is None:
            self._watch = self._loop.call_later(self._timeout_s, self._look)
        return answer

    def close(self) -> None:
        """Close the connection; what waits is lost."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are none by their class

    def data_received(self, data: bytes) -> None:
        """Hand out what is answered."""
        self._reader.feed(data)
        try:
            answer = self._reader.gets()
            while answer is not False:
                waiting, _ = self._waiting.popleft()
                if not waiting.done():  # whoever asked may have left
                    waiting.set_result(answer)
                answer = self._reader.gets()
        except (hiredis.ProtocolError, IndexError):  # no Redis, or answers that nobody asked for
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell everybody that waits."""
        if self._watch is not None:
            self._watch.cancel()
        reason = "was silent for too long" if self._is_silent else "closed the connection"
        while self._waiting:
            waiting, _ = self._waiting.popleft()
            if not waiting.done():
                waiting.set_exception(StoreDown(f"the key-value store {reason}"))

    def _flush(self) -> None:
        """Write what was sent in this turn of the event loop, all of it by one system call."""
        packed, self._packed = self._packed, []
        if self.is_open:
            assert self._transport is not None, "it is open"
            self._transport.write(packed[0] if len(packed) == 1 else b"".join(packed))

    def _look(self) -> None:
        """Cut a connection whose oldest command waits for too long; one timer serves all commands."""
        self._watch = None
        if not self._waiting:
            return
        left_s = self._waiting[0][1] + self._timeout_s - self._loop.time()
        if left_s <= 0:
            self._is_silent = True
            self.close()
        else:
            self._watch = self._loop.call_later(left_s, self._look)


async def open_link(url: str, *, timeout_s: float) -> Link:
    """Connect to `redis://`, `rediss://` or `unix://`, with its user, password and database; raises `StoreDown`."""
    parts: Mapping[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]  # the library has no annotation there
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            if "path" in parts:
                _, link = await loop.create_unix_connection(lambda: Link(timeout_s=timeout_s), parts["path"])
            else:
                host, port = parts.get("host", "localhost"), parts.get("port", 6379)
                tls = _tls(parts) if url.startswith("rediss:") else None
                _, link = await loop.create_connection(lambda: Link(timeout_s=timeout_s), host, port, ssl=tls)
            await _introduce(link, parts)
    except (OSError, TimeoutError) as exc:
        raise StoreDown(f"the key-value store cannot be reached ({type(exc).__name__})") from exc
    return link


async def _introduce(link: Link, parts: Mapping[str, Any]) -> None:
    answers = []
    if parts.get("password"):
        user = (parts["username"],) if parts.get("username") else ()
        answers.append(link.send("AUTH", *user, parts["password"]))
    if parts.get("db"):
        answers.append(link.send("SELECT", parts["db"]))
    for answer in await asyncio.gather(*answers):
        if isinstance(answer, hiredis.ReplyError):
            link.close()
            raise StoreDown("the key-value store does not let us in")


class SharedLink:
    """One connection for many callers, opened at the first command and again after every loss.

    Connecting and each answer have `timeout_s`. A command may run twice where the connection is lost under it.
    """

    def __init__(self, url: str, *, timeout_s: float) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._link: Link | None = None
        self._opening = asyncio.Lock()

    async def ask(self, *words: str | int | bytes) -> Any:
        """Return the answer, a refusal as a `hiredis.ReplyError` value; raises `StoreDown`."""
        link = self._link
        if link is None or not link.is_open:
            return await (await self.open()).send(*words)
        try:
            return await link.send(*words)
        except StoreDown:
            if link.is_open:
                raise
        # The server was started anew, most likely: once more on a connection of its own.
        return await (await self.open()).send(*words)

    async def open(self) -> Link:
        """Return the connection, open."""
        async with self._opening:
            if self._link is None or not self._link.is_open:
                self._link = await open_link(self._url, timeout_s=self._timeout_s)
            return self._link

    def close(self) -> None:
        """Close the connection; the next command opens another."""
        if self._link is not None:
            self._link.close()


def _tls(parts: Mapping[str, Any]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=parts.get("ssl_ca_certs"))
    if parts.get("ssl_cert_reqs") == "none":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if parts.get("ssl_certfile"):
        context.load_cert_chain(parts["ssl_certfile"], parts.get("ssl_keyfile"))
    return context
