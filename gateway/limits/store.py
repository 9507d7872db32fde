"""The counters' store: scripts by their hash, one round trip each."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any, Protocol

import hiredis

from gateway.limits.errors import StoreLost
from gateway.limits.link import Link, open_link


class Scripts(Protocol):
    """Run a script in the store."""

    async def run(self, script: str, keys: Sequence[str], arguments: Sequence[str | int]) -> Any:
        """Return what the script returns, texts as bytes; raises `StoreLost`."""
        ...


class RedisScripts:
    """Run scripts on Redis or Valkey, over one connection that is opened at the first, and again after every loss.

    A script is sent whole only where the server does not know it yet. It may run twice where the connection is lost
    under it, so it has to bear that. Connecting and each answer have `timeout_s`; messages never quote the URL.
    """

    def __init__(self, url: str, *, timeout_s: float = 0.5) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._link: Link | None = None
        self._opening = asyncio.Lock()
        self._hashes: dict[str, str] = {}

    async def run(self, script: str, keys: Sequence[str], arguments: Sequence[str | int]) -> Any:
        """Return what the script returns; raises `StoreLost`."""
        link = self._link
        if link is None or not link.is_open:
            link = await self._open()
            return await self._run(link, script, keys, arguments)
        try:
            return await self._run(link, script, keys, arguments)
        except StoreLost:
            if link.is_open:
                raise
            # The server was started anew, most likely: once more on a connection of its own.
            return await self._run(await self._open(), script, keys, arguments)

    async def aclose(self) -> None:
        """Close the connection."""
        if self._link is not None:
            self._link.close()

    async def _run(self, link: Link, script: str, keys: Sequence[str], arguments: Sequence[str | int]) -> Any:
        answer = await link.send("EVALSHA", self._hash(script), len(keys), *keys, *arguments)
        if isinstance(answer, hiredis.ReplyError) and str(answer).startswith("NOSCRIPT"):
            answer = await link.send("EVAL", script, len(keys), *keys, *arguments)
        if isinstance(answer, hiredis.ReplyError):
            # Its words may quote keys: the first one names the kind.
            raise StoreLost(f"the counters' store refuses ({str(answer).partition(' ')[0]})") from answer
        return answer

    def _hash(self, script: str) -> str:
        digest = self._hashes.get(script)
        if digest is None:
            # SHA-1 is how the store names scripts.
            digest = self._hashes[script] = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
        return digest

    async def _open(self) -> Link:
        async with self._opening:
            if self._link is None or not self._link.is_open:
                self._link = await open_link(self._url, timeout_s=self._timeout_s)
            return self._link
