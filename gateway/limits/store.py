"""The counters' store: scripts by their hash, one round trip each."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Protocol

import hiredis

from cache.link import SharedLink
from cache.store import StoreDown
from gateway.limits.errors import StoreLost


class Scripts(Protocol):
    """Run a script in the store."""

    async def run(self, script: str, keys: Sequence[str], arguments: Sequence[str | int]) -> Any:
        """Return what the script returns, texts as bytes; raises `StoreLost`."""
        ...


class RedisScripts:
    """Run scripts on Redis or Valkey, over one connection that is opened at the first, and again after every loss.

    A script is sent whole only where the server does not know it yet. It may run twice where the connection is lost
    under it, so it has to bear that. Connecting and each answer have `timeout_s`; messages never quote the URL. `link`
    may be a connection that others use, too.
    """

    def __init__(self, url: str, *, timeout_s: float = 0.5, link: SharedLink | None = None) -> None:
        self._link = link or SharedLink(url, timeout_s=timeout_s)
        self._hashes: dict[str, str] = {}

    async def run(self, script: str, keys: Sequence[str], arguments: Sequence[str | int]) -> Any:
        """Return what the script returns; raises `StoreLost`."""
        try:
            answer = await self._link.ask("EVALSHA", self._hash(script), len(keys), *keys, *arguments)
            if isinstance(answer, hiredis.ReplyError) and str(answer).startswith("NOSCRIPT"):
                answer = await self._link.ask("EVAL", script, len(keys), *keys, *arguments)
        except StoreDown as exc:
            raise StoreLost(str(exc)) from exc
        if isinstance(answer, hiredis.ReplyError):
            # Its words may quote keys: the first one names the kind.
            raise StoreLost(f"the counters' store refuses ({str(answer).partition(' ')[0]})") from answer
        return answer

    async def aclose(self) -> None:
        """Close the connection."""
        self._link.close()

    def _hash(self, script: str) -> str:
        digest = self._hashes.get(script)
        if digest is None:
            # SHA-1 is how the store names scripts.
            digest = self._hashes[script] = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
        return digest
