"""A Redis client for work of ours that can do without Redis: it gives up soon, and tries once more at most."""

from __future__ import annotations

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff


def prompt_redis(url: str, *, timeout_s: float) -> Redis:
    """Return a client that connects at its first command; neither connecting nor an answer may take `timeout_s`."""
    return Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 1),
        protocol=2,
        driver_info=None,
    )
