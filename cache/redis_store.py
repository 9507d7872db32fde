"""A store on Redis or Valkey, embedded or far away; it also elects one worker among many."""

from __future__ import annotations

import math
import secrets
from collections import deque
from collections.abc import Awaitable
from typing import Any
from urllib.parse import urlsplit

import hiredis

from cache.card import Card, Invalidated
from cache.catalogue_scripts import FORGET, KEEP, Script
from cache.link import SharedLink
from cache.script import Row, rows_of, run_script
from cache.store import StoreDown, StoreFull
from cache.worth import HALF_LIFE_TURNS, PRICE_POWER, Bounds

CATALOGUE_PREFIX = "lamina:c:"
VALUE_PREFIX = "lamina:x:"
_MAX_ROWS_OUT = 10_000

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

    Values that come with a card are listed by it, at most as much of them as `bounds` says. `rows_out` holds the
    (partition, entry) of semantic entries that left; whoever tells the index takes them out. It holds 10,000 at most.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 0.25,
        prefix: str = VALUE_PREFIX,
        link: SharedLink | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self.rows_out: deque[Row] = deque(maxlen=_MAX_ROWS_OUT)
        self._place = _place_of(url)
        self._prefix = prefix
        self._link = link or SharedLink(url, timeout_s=timeout_s)
        self._bounds = bounds or Bounds()

    async def get(self, key: str) -> bytes | None:
        """Return the value, or None where there is none or its time is over."""
        value = await self._ask("GET", self._prefix + key)
        assert value is None or isinstance(value, bytes), "answers are not decoded"
        return value

    async def put(self, key: str, value: bytes, *, ttl_s: float, card: Card | None = None) -> None:
        """Keep the value for `ttl_s` seconds, in place of any earlier one.

        Raises `Invalidated` where an invalidation that covers the card came after its epoch.
        """
        if card is None:
            await self._ask("SET", self._prefix + key, value, "PX", _milliseconds(ttl_s))
            return
        bounds = self._bounds
        words = (key, value, _milliseconds(ttl_s), card.epoch, repr(card.worth_usd))
        limits = (bounds.max_entries or 0, bounds.max_bytes or 0)
        is_kept, *rows = await self._run(KEEP, *words, *limits, repr(PRICE_POWER), repr(HALF_LIFE_TURNS), card.pack())
        if not is_kept:
            raise Invalidated("an invalidation came while the answer was on its way")
        self.rows_out.extend(rows_of(rows))

    async def delete(self, key: str) -> None:
        """Forget the value, if there is one, and its card."""
        _, *rows = await self._run(FORGET, "quarantined", key)
        self.rows_out.extend(rows_of(rows))

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
        return await self._answer_of(self._link.ask(*words))

    async def _run(self, script: Script, *words: str | int | bytes) -> Any:
        return await self._answer_of(run_script(self._link, script, CATALOGUE_PREFIX, self._prefix, *words))

    async def _answer_of(self, asked: Awaitable[Any]) -> Any:
        """Wait for it; a fault and a refusal are `StoreDown`, whose words quote neither URL nor command."""
        try:
            answer = await asked
        except StoreDown as exc:
            raise StoreDown(f"the key-value store at {self._place} does not answer: {exc}") from exc
        if not isinstance(answer, hiredis.ReplyError):
            return answer
        kind = str(answer).partition(" ")[0]
        if kind == "OOM":
            raise StoreFull(f"the key-value store at {self._place} is full") from answer
        raise StoreDown(f"the key-value store at {self._place} does not answer ({kind})") from answer


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
