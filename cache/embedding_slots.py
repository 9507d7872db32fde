"""Embeddings in Redis, in a fixed number of slots: owners and restarts share them, and they never take more room."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import struct
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

import hiredis
import numpy as np

from cache.bounded_store import Breaker, ask_within
from cache.embedding_cache import Embedding
from cache.link import SharedLink
from cache.store import StoreDown
from orchestration.core.deadlines import Deadlines

logger = logging.getLogger(__name__)

TTL_S = 7 * 86_400
_HEAD = struct.Struct("<16sI?")
_OVERHEAD_BYTES = 120  # of a key on the server
_MAX_WAITING = 4096
_WRITE_EVERY_S = 0.05


class EmbeddingSlots:
    """Keep embeddings of one encoder's revision, each in the one slot that its text's hash names.

    A text takes the place of another one in its slot, so at most `max_bytes` are used. Reading takes `timeout_s` at
    most, and stops for a while where Redis does not answer. What is to be written waits a moment for others; of it
    at most 4,096 wait, the oldest are lost. A value of another text, size or version is a miss.
    """

    def __init__(self, url: str, *, revision: str, dim: int, max_bytes: int, timeout_s: float = 0.02) -> None:
        space = hashlib.sha256(revision.encode()).hexdigest()[:12]
        self._prefix = f"lamina:e:{space}:"
        self._dim = dim
        self._num_slots = max(1, max_bytes // (_HEAD.size + 4 * dim + _OVERHEAD_BYTES))
        self._timeout_s = timeout_s
        self._link = SharedLink(url, timeout_s=1.0)
        self._breaker = Breaker()
        self._deadlines = Deadlines()
        self._waiting: OrderedDict[str, bytes] = OrderedDict()
        self._has_waiting = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.create_task(self._write_forever(), name="embedding-slots")

    async def read(self, digests: Sequence[bytes]) -> list[Embedding | None]:
        """Return what is known."""
        nothing: list[Embedding | None] = [None] * len(digests)
        asking = partial(self._link.ask, "MGET", *(self._key(digest) for digest in digests))
        try:
            values = await ask_within(self._timeout_s, asking, breaker=self._breaker, deadlines=self._deadlines)
        except StoreDown:
            return nothing
        if isinstance(values, hiredis.ReplyError):
            return nothing
        return [self._unpack(digest, value) for digest, value in zip(digests, values, strict=True)]

    def write(self, digest: bytes, embedding: Embedding) -> None:
        """Keep one, soon."""
        packed = _HEAD.pack(digest, embedding.num_tokens, embedding.has_unknown) + embedding.vector.tobytes()
        self._waiting[self._key(digest)] = packed
        if len(self._waiting) > _MAX_WAITING:
            self._waiting.popitem(last=False)
        self._has_waiting.set()

    async def aclose(self) -> None:
        """Write what waits, and close the connection."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._write()
        self._link.close()
        await asyncio.sleep(0)  # the event loop lets go of a connection in its next turn

    async def _write_forever(self) -> None:
        while True:
            await self._has_waiting.wait()
            self._has_waiting.clear()
            await self._write()
            await asyncio.sleep(_WRITE_EVERY_S)

    async def _write(self) -> None:
        """Write what waits; where Redis does not answer or has no room, it is lost."""
        waiting, self._waiting = self._waiting, OrderedDict()
        written = (self._link.ask("SET", key, packed, "EX", TTL_S) for key, packed in waiting.items())
        try:
            await asyncio.gather(*written)
        except StoreDown as exc:
            logger.info("embeddings.not_shared: %s", exc)

    def _key(self, digest: bytes) -> str:
        return f"{self._prefix}{int.from_bytes(digest[:8], 'little') % self._num_slots:x}"

    def _unpack(self, digest: bytes, value: bytes | None) -> Embedding | None:
        if value is None or len(value) != _HEAD.size + 4 * self._dim:
            return None
        whose, num_tokens, has_unknown = _HEAD.unpack_from(value)
        if whose != digest:
            return None
        return Embedding(np.frombuffer(value, np.float32, offset=_HEAD.size), num_tokens, has_unknown)
