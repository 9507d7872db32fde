"""A store on Redis or Valkey, embedded or far away; it also elects one worker among many."""

from __future__ import annotations

import math
import secrets
from typing import Any
from urllib.parse import urlsplit

import hiredis

from cache.link import SharedLink
from cache.store import StoreDown

_RELEASE = """
if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) end
return 0
"""


class RedisStore:
    """Keep values under `prefix`, each with its time to live; `url` is `redis://`, `rediss://` or `unix://`.

    Connects at the first command, again after every loss, and gives each step (connecting, the answer) `timeout_s`;
    `link` may be a connection that others use, too. Raises `ValueError` for a URL of another scheme; every later fault
    is `StoreDown`, whose message names the host or socket and never the URL's password. Implements `Store` and
    `Leases`.
    """

    def __init__(
        self, url: str, *, timeout_s: float = 0.25, prefix: str = "lamina:x:", link: SharedLink | None = None
    ) -> None:
        self._place = _place_of(url)
        self._prefix = prefix
        self._link = link or SharedLink(url, timeout_s=timeout_s)

    async def get(self, key: str) -> bytes | None:
        """Return the value, or None where there is none or its time is over."""
        value = await self._ask("GET", self._prefix + key)
        assert value is None or isinstance(value, bytes), "answers are not decoded"
        return value

    async def put(self, key: str, value: bytes, *, ttl_s: float) -> None:
        """Keep the value for `ttl_s` seconds, in place of any earlier one."""
        await self._ask("SET", self._prefix + key, value, "PX", _milliseconds(ttl_s))

    async def delete(self, key: str) -> None:
        """Forget the value, if there is one."""
        await self._ask("DEL", self._prefix + key)

    async def acquire(self, key: str, *, ttl_s: float) -> str | None:
        """Take the lease for `ttl_s` seconds and return its token, or None while another holds it."""
        token = secrets.token_hex(8)
        answer = await self._ask("SET", self._lease(key), token, "PX", _milliseconds(ttl_s), "NX")
        return None if answer is None else token

    async def release(self, key: str, token: str) -> None:
        """Give the lease back, if `token` still holds it."""
        await self._ask("EVAL", _RELEASE, 1, self._lease(key), token)

    async def check_health(self) -> str | None:
        """Say what is wrong, in a phrase, or None where the server answers."""
        try:
            await self._ask("PING")
        except StoreDown as exc:
            return str(exc)
        return None

    async def aclose(self) -> None:
        """Close the connection."""
        self._link.close()

    def _lease(self, key: str) -> str:
        return f"{self._prefix}lease:{key}"

    async def _ask(self, *words: str | int | bytes) -> Any:
        """Send a command; a fault and a refusal are `StoreDown`, whose words quote neither URL nor command."""
        try:
            answer = await self._link.ask(*words)
        except StoreDown as exc:
            raise StoreDown(f"the key-value store at {self._place} does not answer: {exc}") from exc
        if isinstance(answer, hiredis.ReplyError):
            kind = str(answer).partition(" ")[0]
            raise StoreDown(f"the key-value store at {self._place} does not answer ({kind})") from answer
        return answer


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
