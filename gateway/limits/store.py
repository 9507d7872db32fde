"""The connection to the counters: scripts by their hash, each run to its end whoever stops waiting."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Protocol

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from gateway.limits.errors import StoreLost

_MAX_CONNECTIONS = 16


class Scripts(Protocol):
    """Run a script in the store."""

    async def run(self, script: str, keys: Sequence[str], arguments: Sequence[str | int]) -> Any:
        """Return what the script returns, texts as bytes; raises `StoreLost`."""
        ...


class RedisScripts:
    """Run scripts on Redis or Valkey at `redis://`, `rediss://` or `unix://`, one round trip each.

    A script is sent whole only where the server does not know it yet. Each step (a free connection, connecting, the
    answer) has `timeout_s`; messages never quote the URL.
    """

    def __init__(self, url: str, *, timeout_s: float = 0.5) -> None:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=_MAX_CONNECTIONS,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 1),  # once, for a connection that a restarted server has closed
            protocol=2,
            driver_info=None,
        )
        self._redis = Redis.from_pool(pool)
        self._hashes: dict[str, str] = {}

    async def run(self, script: str, keys: Sequence[str], arguments: Sequence[str | int]) -> Any:
        """Return what the script returns; raises `StoreLost`."""
        digest = self._hashes.get(script)
        if digest is None:
            # SHA-1 is how the store names scripts.
            digest = self._hashes[script] = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
        try:
            try:
                return await self._redis.evalsha(digest, len(keys), *keys, *arguments)
            except NoScriptError:
                return await self._redis.eval(script, len(keys), *keys, *arguments)
        except (TimeoutError, RedisError, OSError) as exc:
            raise StoreLost(f"the counters' store does not answer ({type(exc).__name__})") from exc

    async def aclose(self) -> None:
        """Close every connection."""
        await self._redis.aclose(close_connection_pool=True)
