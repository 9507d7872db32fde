"""A store on Redis or Valkey, embedded or far away; it also elects one worker among many."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from cache.store import StoreDown

# Commands take about 0.1 ms: eight connections carry a burst of 64 calls sooner than 64 connections open.
_MAX_CONNECTIONS = 8
_RELEASE = """
if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) end
return 0
"""


class RedisStore:
    """Keep values under `prefix`, each with its time to live; `url` is `redis://`, `rediss://` or `unix://`.

    Connects at the first command, again after every loss, and gives each step (a free connection, connecting, the
    answer) `timeout_s`. Raises `ValueError` for a URL of another scheme; every later fault is `StoreDown`, whose
    message names the host or socket and never the URL's password. Implements `Store` and `Leases`.
    """

    def __init__(self, url: str, *, timeout_s: float = 0.25, prefix: str = "lamina:x:") -> None:
        self._place = _place_of(url)
        self._prefix = prefix
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=_MAX_CONNECTIONS,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 1),  # once, for a connection that a restarted server has closed
            protocol=2,  # spares each new connection a round trip; nothing here needs RESP3
            driver_info=None,  # and this another
        )
        self._redis = Redis.from_pool(pool)

    async def get(self, key: str) -> bytes | None:
        """Return the value, or None where there is none or its time is over."""
        with self._asking():
            value = await self._redis.get(self._prefix + key)
        assert not isinstance(value, str), "answers are not decoded"
        return value

    async def put(self, key: str, value: bytes, *, ttl_s: float) -> None:
        """Keep the value for `ttl_s` seconds, in place of any earlier one."""
        with self._asking():
            await self._redis.set(self._prefix + key, value, px=_milliseconds(ttl_s))

    async def delete(self, key: str) -> None:
        """Forget the value, if there is one."""
        with self._asking():
            await self._redis.delete(self._prefix + key)

    async def acquire(self, key: str, *, ttl_s: float) -> str | None:
        """Take the lease for `ttl_s` seconds and return its token, or None while another holds it."""
        token = secrets.token_hex(8)
        with self._asking():
            is_ours = await self._redis.set(self._lease(key), token, nx=True, px=_milliseconds(ttl_s))
        return token if is_ours else None

    async def release(self, key: str, token: str) -> None:
        """Give the lease back, if `token` still holds it."""
        with self._asking():
            await self._redis.eval(_RELEASE, 1, self._lease(key), token)

    async def check_health(self) -> str | None:
        """Say what is wrong, in a phrase, or None where the server answers."""
        try:
            with self._asking():
                await self._redis.ping()
        except StoreDown as exc:
            return str(exc)
        return None

    async def aclose(self) -> None:
        """Close every connection."""
        await self._redis.aclose(close_connection_pool=True)

    def _lease(self, key: str) -> str:
        return f"{self._prefix}lease:{key}"

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Turn the library's faults into `StoreDown`, and let no cancellation get lost.

        Up to Python 3.11 `asyncio.wait_for`, which the library sends by, forgets a cancellation that comes just as
        it is done: a client that left would not be noticed, nor the end of a deadline.
        """
        task = asyncio.current_task()
        assert task is not None, "commands run in a task"
        num_cancelled = task.cancelling()
        fault: Exception | None = None
        try:
            yield
        except (RedisError, OSError) as exc:
            fault = exc
        if task.cancelling() > num_cancelled:
            raise asyncio.CancelledError from fault
        if fault is not None:
            # The library's words may quote the URL or a command: only the kind of fault is told.
            raise StoreDown(f"the key-value store at {self._place} does not answer ({type(fault).__name__})") from fault


def _place_of(url: str) -> str:
    parts = urlsplit(url)
    match parts.scheme:
        case "unix":
            return parts.path
        case "redis" | "rediss":
            return f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
        case other:
            raise ValueError(f"a store's URL begins with redis://, rediss:// or unix://, not {other or 'nothing'}://")


def _milliseconds(ttl_s: float) -> int:
    return max(1, math.ceil(ttl_s * 1000))
