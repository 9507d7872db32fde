"""Vectors in Redis: one hash per partition, and a stream by which the owners on one Redis follow each other."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from cache.index import Row
from cache.store import StoreDown

_EXPIRY = struct.Struct("<d")
_ROWS_PER_READ = 500
_CHANGES_PER_READ = 500


@dataclass(frozen=True, slots=True)
class Added:
    """Another owner added a row."""

    partition: str
    row: Row


@dataclass(frozen=True, slots=True)
class Removed:
    """Another owner took an entry out."""

    partition: str
    entry: str


Change = Added | Removed


class ChangesLost(Exception):
    """The stream was trimmed past what was read: only reading everything anew helps."""


class VectorStore:
    """Keep the rows of one embedder's revision; vectors of another revision never meet them.

    A partition's hash lives as long as its longest-lived row. Every method raises `StoreDown` where Redis does not
    work. The stream keeps about `max_changes` changes.
    """

    def __init__(
        self, url: str, *, revision: str, dim: int, owner: str, timeout_s: float = 1.0, max_changes: int = 10_000
    ) -> None:
        self.revision = revision
        space = hashlib.sha256(revision.encode()).hexdigest()[:12]
        self._prefix = f"lamina:v:{space}:"
        self._stream = f"lamina:vs:{space}"
        self._dim = dim
        self._owner = owner.encode()
        self._max_changes = max_changes
        self._redis = _connect(url, timeout_s=timeout_s, max_connections=8)
        # A blocking read has its own connection and a longer patience.
        self._reader = _connect(url, timeout_s=timeout_s + 2.0, max_connections=1)

    async def save(self, partition: str, row: Row, *, ttl_s: float) -> None:
        """Keep a row for `ttl_s` seconds and tell the other owners."""
        packed = _EXPIRY.pack(row.expires_at) + row.vector.tobytes()
        key, ttl_ms = self._prefix + partition, max(1, int(ttl_s * 1000))
        change: dict[Any, Any] = {b"o": self._owner, b"p": partition, b"e": row.entry, b"v": packed}
        try:
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.hset(key, row.entry, packed)
                pipe.pexpire(key, ttl_ms, nx=True)  # GT alone takes a key without a time as endless
                pipe.pexpire(key, ttl_ms, gt=True)
                pipe.xadd(self._stream, change, maxlen=self._max_changes, approximate=True)
                await pipe.execute()
        except (exceptions.RedisError, OSError) as exc:
            raise _down(exc) from exc

    async def save_all(self, partition: str, rows: Sequence[Row], *, ttl_s: float) -> None:
        """Keep many rows by one command; other owners, which are not told, read them with the partition."""
        packed: dict[Any, Any] = {row.entry: _EXPIRY.pack(row.expires_at) + row.vector.tobytes() for row in rows}
        key, ttl_ms = self._prefix + partition, max(1, int(ttl_s * 1000))
        try:
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.hset(key, mapping=packed)
                pipe.pexpire(key, ttl_ms, nx=True)
                pipe.pexpire(key, ttl_ms, gt=True)
                await pipe.execute()
        except (exceptions.RedisError, OSError) as exc:
            raise _down(exc) from exc

    async def remove(self, partition: str, entries: Sequence[str], *, is_told: bool = True) -> None:
        """Forget rows and, where `is_told`, tell the other owners (who find out about expired ones by themselves)."""
        try:
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.hdel(self._prefix + partition, *entries)
                for entry in entries if is_told else ():
                    change: dict[Any, Any] = {b"o": self._owner, b"p": partition, b"e": entry}
                    pipe.xadd(self._stream, change, maxlen=self._max_changes, approximate=True)
                await pipe.execute()
        except (exceptions.RedisError, OSError) as exc:
            raise _down(exc) from exc

    async def load(self, partition: str) -> list[Row]:
        """Read a partition's rows, expired ones included."""
        try:
            packed = self._redis.hscan_iter(self._prefix + partition, count=_ROWS_PER_READ)
            rows = [self._unpack(entry, value) async for entry, value in packed]
        except (exceptions.RedisError, OSError) as exc:
            raise _down(exc) from exc
        return [row for row in rows if row is not None]

    async def partitions(self) -> AsyncGenerator[str, None]:
        """Give the names of all partitions, in no order, now and then one twice."""
        try:
            async for key in self._redis.scan_iter(match=self._prefix + "*", count=_ROWS_PER_READ):
                yield key.decode()[len(self._prefix) :]
        except (exceptions.RedisError, OSError) as exc:
            raise _down(exc) from exc

    async def latest_change(self) -> str:
        """Return the id of the latest change, to read on from."""
        try:
            latest: Any = await self._redis.xrevrange(self._stream, count=1)
        except (exceptions.RedisError, OSError) as exc:
            raise _down(exc) from exc
        return _text(latest[0][0]) if latest else "0-0"

    async def holds_change(self, change_id: str) -> bool:
        """Tell whether the stream still holds this very change, and so everything that came after it."""
        try:
            return bool(await self._redis.xrange(self._stream, change_id, change_id, count=1))
        except (exceptions.RedisError, OSError) as exc:
            raise _down(exc) from exc

    async def changes_after(self, change_id: str, *, wait_s: float) -> tuple[str, list[Change]]:
        """Wait at most `wait_s` for changes by other owners; returns the id to read on from, and the changes.

        Raises `ChangesLost` where the stream was trimmed past `change_id`.
        """
        try:
            reply: Any = await self._reader.xread(
                {self._stream: change_id}, count=_CHANGES_PER_READ, block=max(1, int(wait_s * 1000))
            )
            messages = reply[0][1] if reply else []
            if len(messages) == _CHANGES_PER_READ:
                await self._check_complete(change_id)
        except (exceptions.RedisError, OSError) as exc:
            raise _down(exc) from exc
        if not messages:
            return change_id, []
        changes = [self._read_change(fields) for _, fields in messages if fields.get(b"o") != self._owner]
        return _text(messages[-1][0]), [change for change in changes if change is not None]

    async def aclose(self) -> None:
        """Close the connections."""
        await self._redis.aclose(close_connection_pool=True)
        await self._reader.aclose(close_connection_pool=True)

    async def _check_complete(self, change_id: str) -> None:
        """Refuse to go on where changes after `change_id` are gone already; asked only of one who lags."""
        info: Any = await self._reader.xinfo_stream(self._stream)
        first = _text(info["first-entry"][0]) if info["first-entry"] else "0-0"
        if info["entries-added"] > info["length"] and _order(first) > _order(change_id):
            raise ChangesLost(f"changes after {change_id} were trimmed, the first is {first}")

    def _read_change(self, fields: dict[bytes, bytes]) -> Change | None:
        partition, entry = fields[b"p"].decode(), fields[b"e"]
        if b"v" not in fields:
            return Removed(partition, entry.decode())
        row = self._unpack(entry, fields[b"v"])
        return Added(partition, row) if row is not None else None

    def _unpack(self, entry: bytes, packed: bytes) -> Row | None:
        """Read a row; None for bytes that are none of ours."""
        if len(packed) != _EXPIRY.size + 4 * self._dim:
            return None
        vector = np.frombuffer(packed, np.float32, offset=_EXPIRY.size)
        return Row(entry.decode(), vector, float(_EXPIRY.unpack_from(packed)[0]))


def _connect(url: str, *, timeout_s: float, max_connections: int) -> Redis:
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=max_connections,
        timeout=timeout_s,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 1),  # once, for a connection that a restarted server has closed
        protocol=2,  # lists and plain bytes in every reply
    )
    return Redis.from_pool(pool)


def _text(value: bytes) -> str:
    return value.decode()


def _order(change_id: str) -> tuple[int, int]:
    time_ms, _, number = change_id.partition("-")
    return int(time_ms), int(number)


def _down(exc: Exception) -> StoreDown:
    return StoreDown(f"the vector store does not answer: {type(exc).__name__}")
