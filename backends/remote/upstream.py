"""HTTP to one upstream, over httpx: the only file that knows of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager

import httpx

from orchestration.core.errors import BackendError, BackendTimeout, BackendUnavailable, Overloaded

_LIMITS = httpx.Limits(max_connections=1_000, max_keepalive_connections=100, keepalive_expiry=30.0)
_HEADERS = {
    "user-agent": "lamina",
    "content-type": "application/json",
    # Compressed streams come in lumps, and some servers answer them empty.
    "accept-encoding": "identity",
}


class Upstream:
    """A pool of connections to one server. Every wait has a deadline, in the event loop's time.

    At most 1,000 connections are open; a call that gets none within `connect_s` ends with `Overloaded`.
    """

    def __init__(
        self, *, base_url: str, name: str | None, kind: str, headers: Mapping[str, str], connect_s: float
    ) -> None:
        url = httpx.URL(base_url)
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError(f"base_url is an http:// or https:// address, not '{base_url}'")
        self.name = name or f"{kind}/{url.netloc.decode()}"
        self._base_url = base_url.rstrip("/")
        # The environment stays out (trust_env): a .netrc would put a password of its own into Authorization.
        self._client = httpx.AsyncClient(
            headers={**_HEADERS, **headers},
            limits=_LIMITS,
            timeout=httpx.Timeout(None, connect=connect_s, pool=connect_s),
            trust_env=False,
        )

    async def post(self, path: str, body: bytes, *, headers: Mapping[str, str], deadline_s: float) -> Reply:
        """Send a body and return the reply once its headers are there; the caller closes it."""
        request = self._client.build_request("POST", f"{self._base_url}/{path}", content=body, headers=headers)
        async with self._guard(deadline_s):
            return Reply(await self._client.send(request, stream=True), guard=self._guard)

    async def get_status(self, path: str, *, timeout_s: float) -> int:
        """Ask for a path and return the status of the answer."""
        async with self._guard(asyncio.get_running_loop().time() + timeout_s):
            return (await self._client.get(f"{self._base_url}/{path}")).status_code

    async def aclose(self) -> None:
        """Close every connection."""
        await self._client.aclose()

    @asynccontextmanager
    async def _guard(self, deadline_s: float) -> AsyncIterator[None]:
        """Keep the deadline, and turn what httpx raises into our errors."""
        try:
            async with asyncio.timeout_at(deadline_s):
                yield
        except (TimeoutError, httpx.ConnectTimeout) as exc:
            raise BackendTimeout(f"{self.name} took longer than its time limit") from exc
        except httpx.PoolTimeout as exc:
            raise Overloaded(f"all connections to {self.name} are in use", retry_after_s=1.0) from exc
        except httpx.ConnectError as exc:
            raise BackendUnavailable(f"{self.name} cannot be reached") from exc
        except (httpx.HTTPError, httpx.StreamError) as exc:
            raise BackendUnavailable(f"the connection to {self.name} broke: {type(exc).__name__}") from exc


class Reply:
    """A reply whose body is read piece by piece."""

    def __init__(
        self, response: httpx.Response, *, guard: Callable[[float], AbstractAsyncContextManager[None]]
    ) -> None:
        self._response = response
        self._guard = guard
        self.status = response.status_code
        self.headers = response.headers

    @property
    def is_event_stream(self) -> bool:
        """Tell whether the body is a stream of server-sent events."""
        return str(self.headers.get("content-type", "")).startswith("text/event-stream")

    async def pieces(self, *, deadline: Callable[[], float]) -> AsyncGenerator[bytes, None]:
        """Give the body as it comes, unpacked; `deadline` is asked anew before each wait."""
        body = self._response.aiter_bytes()
        assert isinstance(body, AsyncGenerator), "httpx gives a generator, typed as an iterator"
        async with aclosing(body):
            while True:
                async with self._guard(deadline()):
                    piece = await anext(body, None)
                if piece is None:
                    return
                yield piece

    async def read(self, *, deadline_s: float, limit_bytes: int) -> bytes:
        """Return the whole body; raises `BackendError` where it is over the limit."""
        body = bytearray()
        async for piece in self.pieces(deadline=lambda: deadline_s):
            body += piece
            if len(body) > limit_bytes:
                raise BackendError(f"the answer is over the limit of {limit_bytes} bytes")
        return bytes(body)

    async def aclose(self) -> None:
        """Give the connection back where the body was read to its end, else close it."""
        await self._response.aclose()
