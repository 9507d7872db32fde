"""Vectors of texts that were encoded before: in memory, and where all owners on one Redis find them."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

_DOUBTS_AFTER = 64
_LEFT_OUT = 15
_OVERHEAD_BYTES = 300
"""What an entry of the table below takes beside its vector (measured for digests of 16 bytes)."""


@dataclass(frozen=True, slots=True)
class Embedding:
    """A text's unit vector, (dim,) float32, and what its tokens say: how many, and whether one was unknown."""

    vector: NDArray[np.float32]
    num_tokens: int
    has_unknown: bool


class SharedEmbeddings(Protocol):
    """Keep embeddings beyond this process. Neither method raises: what does not work is a miss, or lost."""

    async def read(self, digests: Sequence[bytes]) -> list[Embedding | None]:
        """Return what is known, None for each text that is not."""
        ...

    def write(self, digest: bytes, embedding: Embedding) -> None:
        """Keep one, soon."""
        ...


@dataclass(slots=True)
class EmbeddingCounts:
    """How many texts were found in memory, with the others, on their way, and how many had to be encoded."""

    memory: int = 0
    shared: int = 0
    joined: int = 0
    encoded: int = 0


class _Chances:
    """Whether asking the others pays: for a lone text it takes a tenth of what encoding does.

    After 64 times in a row without a find only every sixteenth lone text is asked for, until one is found.
    """

    def __init__(self) -> None:
        self._in_vain = 0
        self._left_out = 0

    def are_worth_it(self, num_texts: int) -> bool:
        if num_texts > 1 or self._in_vain < _DOUBTS_AFTER or self._left_out >= _LEFT_OUT:
            self._left_out = 0
            return True
        self._left_out += 1
        return False

    def hear(self, has_found: bool) -> None:
        self._in_vain = 0 if has_found else self._in_vain + 1


class EmbeddingCache:
    """Keep embeddings of one revision by the text's hash, at most `max_bytes` in memory, the least used leave first.

    What is not in memory is asked of the others (`shared`), most lone texts only while these know some of them.
    A text that is being encoded is not encoded once more for another who asks for it in the same `lane`; who leaves
    does not stop it.
    """

    def __init__(self, *, max_bytes: int, shared: SharedEmbeddings | None = None) -> None:
        self.counts = EmbeddingCounts()
        self.size_bytes = 0
        self._max_bytes = max_bytes
        self._shared = shared
        self._kept: OrderedDict[bytes, Embedding] = OrderedDict()
        self._chances = _Chances()
        self._under_way: dict[tuple[bytes, Hashable], asyncio.Task[Embedding]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    async def find(self, texts: Sequence[str]) -> list[Embedding | None]:
        """Return what is known of each text, None where it is to be encoded."""
        digests = [_digest(text) for text in texts]
        found = [self._recall(digest) for digest in digests]
        missing = list({digest: None for digest, known in zip(digests, found, strict=True) if known is None})
        self.counts.memory += len(texts) - sum(known is None for known in found)
        if not missing or self._shared is None or not self._chances.are_worth_it(len(missing)):
            return found
        told = dict(zip(missing, await self._shared.read(missing), strict=True))
        self._chances.hear(any(embedding is not None for embedding in told.values()))
        for digest, embedding in told.items():
            if embedding is not None:
                self.counts.shared += 1
                self._keep(digest, embedding)
        return [told.get(digest) if known is None else known for digest, known in zip(digests, found, strict=True)]

    async def encode_once(self, text: str, encode: Callable[[], Awaitable[Embedding]], *, lane: Hashable) -> Embedding:
        """Return the text's embedding, by `encode` where nobody in this lane encodes it yet; raises what that does."""
        digest = _digest(text)
        task = self._under_way.get((digest, lane))
        if task is None:
            task = asyncio.create_task(self._encode(digest, encode), name="encode")
            self._under_way[digest, lane] = task
            task.add_done_callback(lambda done: self._forget_task((digest, lane), done))
        else:
            self.counts.joined += 1
        return await asyncio.shield(task)

    async def aclose(self) -> None:
        """Give up what is being encoded."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _encode(self, digest: bytes, encode: Callable[[], Awaitable[Embedding]]) -> Embedding:
        embedding = await encode()
        self.counts.encoded += 1
        self._keep(digest, embedding)
        if self._shared is not None:
            self._shared.write(digest, embedding)
        return embedding

    def _forget_task(self, key: tuple[bytes, Hashable], task: asyncio.Task[Embedding]) -> None:
        del self._under_way[key]
        if not task.cancelled():
            task.exception()  # whoever asked may have left, and then nobody else looks at it

    def _recall(self, digest: bytes) -> Embedding | None:
        known = self._kept.get(digest)
        if known is not None:
            self._kept.move_to_end(digest)
        return known

    def _keep(self, digest: bytes, embedding: Embedding) -> None:
        if digest not in self._kept:
            self.size_bytes += _size_of(embedding)
        self._kept[digest] = embedding
        self._kept.move_to_end(digest)
        while self.size_bytes > self._max_bytes:
            _, gone = self._kept.popitem(last=False)
            self.size_bytes -= _size_of(gone)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _size_of(embedding: Embedding) -> int:
    return embedding.vector.nbytes + _OVERHEAD_BYTES
