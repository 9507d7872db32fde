"""HTTP to one upstream: requests go out, replies come back piece by piece, every wait has a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from backends.remote.connection import Connection, ConnectionBroke, DeadlineOver
from backends.remote.pool import CannotConnect, Pool, PoolFull
from orchestration.core.errors import BackendError, BackendTimeout, BackendUnavailable, LaminaError, Overloaded

_HEADERS = {
    "accept": "*/*",
    # Compressed streams come in lumps, and some servers answer them empty.
    "accept-encoding": "identity",
    "connection": "keep-alive",
    "user-agent": "lamina",
    "content-type": "application/json",
}

_FAULTS = (TimeoutError, DeadlineOver, PoolFull, CannotConnect, ConnectionBroke)


class Upstream:
    """A pool of connections to one server. Every wait has a deadline, in the event loop's time.

    At most 1,000 connections are open; a call that gets none within `connect_s` ends with `Overloaded`. The
    environment stays out: no proxy, no .netrc.
    """

    def __init__(
        self, *, base_url: str, name: str | None, kind: str, headers: Mapping[str, str], connect_s: float
    ) -> None:
        parts = _checked(base_url)
        assert parts.hostname is not None, "it is checked"
        is_secure = parts.scheme == "https"
        self.name = name or f"{kind}/{parts.netloc.rpartition('@')[2]}"
        self._path = parts.path.rstrip("/")
        self._root = self._path.removesuffix("/v1")
        self._head = _lines({"host": parts.netloc.rpartition("@")[2], **_HEADERS, **headers})
        self._pool = Pool(
            host=parts.hostname, port=parts.port or (443 if is_secure else 80), is_secure=is_secure, connect_s=connect_s
        )

    async def post(self, path: str, body: bytes, *, headers: Mapping[str, str], deadline_s: float) -> Reply:
        """Send a body and return the reply once its head is there; the caller closes it.

        A path that begins with a slash stands behind the base address without its `/v1`.
        """
        place = self._root + path if path.startswith("/") else f"{self._path}/{path}"
        first = f"POST {place} HTTP/1.1\r\n".encode()
        request = b"%b%b%bcontent-length: %d\r\n\r\n%b" % (first, self._head, _lines(headers), len(body), body)
        return await self._ask(request, deadline_s=deadline_s)

    async def get_status(self, path: str, *, timeout_s: float) -> int:
        """Ask for a path and return the status of the answer."""
        request = b"%b%b\r\n" % (f"GET {self._path}/{path} HTTP/1.1\r\n".encode(), self._head)
        reply = await self._ask(request, deadline_s=asyncio.get_running_loop().time() + timeout_s)
        reply.close()
        return reply.status

    async def aclose(self) -> None:
        """Close every connection."""
        await self._pool.aclose()

    async def _ask(self, request: bytes, *, deadline_s: float) -> Reply:
        try:
            connection = self._pool.take_idle() or await self._connect(deadline_s)
        except _FAULTS as exc:
            raise self._told(exc) from exc
        reply = Reply(connection, upstream=self)
        try:
            connection.begin(request)
            await connection.read_head(deadline_s=deadline_s)
        except _FAULTS as exc:
            reply.close()
            raise self._told(exc) from exc
        except BaseException:
            reply.close()
            raise
        reply.status, reply.headers = connection.status, connection.headers
        return reply

    async def _connect(self, deadline_s: float) -> Connection:
        """Lend a connection that has to be waited for."""
        async with asyncio.timeout_at(deadline_s):
            return await self._pool.acquire()

    def give_back(self, connection: Connection) -> None:
        """Keep a connection whose answer was read to its end, close any other one."""
        self._pool.release(connection)

    async def read_piece(self, connection: Connection, *, deadline_s: float) -> bytes:
        """Return the next piece of a body, nothing at its end; raises our errors."""
        try:
            return await connection.read_piece(deadline_s=deadline_s)
        except _FAULTS as exc:
            raise self._told(exc) from exc

    def _told(self, fault: Exception) -> LaminaError:
        """Turn what the connection raises into our errors."""
        match fault:
            case PoolFull():
                return Overloaded(f"all connections to {self.name} are in use", retry_after_s=1.0)
            case CannotConnect():
                return BackendUnavailable(f"{self.name} cannot be reached")
            case ConnectionBroke():
                return BackendUnavailable(f"the connection to {self.name} broke: {fault}")
            case _:
                return BackendTimeout(f"{self.name} took longer than its time limit")


class Reply:
    """A reply whose body is read piece by piece."""

    __slots__ = ("_connection", "_upstream", "headers", "status")

    def __init__(self, connection: Connection, *, upstream: Upstream) -> None:
        self._connection: Connection | None = connection
        self._upstream = upstream
        self.status = 0
        self.headers: Mapping[str, str] = {}

    @property
    def is_event_stream(self) -> bool:
        """Tell whether the body is a stream of server-sent events."""
        return self.headers.get("content-type", "").startswith("text/event-stream")

    async def read_piece(self, *, deadline_s: float) -> bytes:
        """Return what of the body has come, at least a byte of it; nothing at its end."""
        assert self._connection is not None, "it is open"
        return await self._upstream.read_piece(self._connection, deadline_s=deadline_s)

    async def read(self, *, deadline_s: float, limit_bytes: int) -> bytes:
        """Return the whole body; raises `BackendError` where it is over the limit."""
        piece = await self.read_piece(deadline_s=deadline_s)
        pieces = [piece]
        num_bytes = len(piece)
        while piece:
            piece = await self.read_piece(deadline_s=deadline_s)
            pieces.append(piece)
            num_bytes += len(piece)
            if num_bytes > limit_bytes:
                raise BackendError(f"the answer is over the limit of {limit_bytes} bytes")
        return b"".join(pieces)

    def close(self) -> None:
        """Give the connection back where the body was read to its end, else close it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._upstream.give_back(connection)


def _checked(base_url: str) -> SplitResult:
    """Split an address; raises `ValueError` for one that is none."""
    try:
        parts = urlsplit(base_url)
        is_sound = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_sound = False
    if not is_sound or any(letter in base_url for letter in " \r\n\t"):
        raise ValueError(f"base_url is an http:// or https:// address, not '{base_url}'")
    return parts


def _lines(headers: Mapping[str, str]) -> bytes:
    """Write header lines; raises `ValueError` for a value that would be more than one."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\r") != len(headers) or lines.count("\n") != len(headers):
        raise ValueError("a header's value holds a line's end")
    return lines.encode("latin-1")
