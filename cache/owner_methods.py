"""What the owner answers: look-ups, additions and vectors, over encoder, batcher and index."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cache.batcher import Batcher, Lane
from cache.embedding_cache import Embedding, EmbeddingCache
from cache.encoder import Encoder, Tokens
from cache.index import NotBuiltYet, Row
from cache.store import StoreDown
from orchestration.core import Candidate
from orchestration.core.rpc import Method

_MAX_TEXTS = 2048
_MAX_EMBEDDING_BYTES = 4 * 1024 * 1024

TextBatcher = Batcher[Tokens, NDArray[np.float32]]


class MethodError(Exception):
    """The call cannot be answered; `code` says why in a word."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class VectorIndex(Protocol):
    """Keep vectors by partition and entry, and find those that lie near.

    Methods that wait raise `StoreDown` where what keeps the vectors does not work and is needed for the answer.
    """

    @property
    def generation(self) -> int:
        """Count the changes."""
        ...

    def is_ready(self, partition: str) -> bool:
        """Tell whether the partition can be searched as it is."""
        ...

    async def ready(self, partition: str) -> None:
        """Have the partition where it can be searched; asked for while its question is encoded."""
        ...

    async def search(self, partition: str, vector: NDArray[np.float32], top_k: int) -> tuple[Candidate, ...]:
        """Return the at most `top_k` nearest living entries, nearest first, the newer first among equals.

        Raises `NotBuiltYet` for a partition that is too large to be searched for now.
        """
        ...

    async def add(self, partition: str, row: Row) -> bool:
        """Add an entry's row in place of its earlier one; tells whether it will outlive this process."""
        ...

    async def remove_rows(self, rows: Sequence[tuple[str, str]]) -> int:
        """Take (partition, entry) rows out; returns how many of them were known."""
        ...

    def numbers(self) -> Mapping[str, int]:
        """Return what is counted, by name."""
        ...


class OwnerMethods:
    """The owner's methods by name; each takes `(params, payload)` and gives `(result, payload)`.

    Codes of refusal: `bad_params`, `too_long` (over the model's tokens), `unreadable` (a token that the model does
    not know: other texts would have the same vector), `busy` (the bounded queue is full), `building` (the index of a
    large partition is).
    """

    def __init__(
        self,
        encoder: Encoder,
        batcher: TextBatcher,
        index: VectorIndex,
        *,
        clock: Callable[[], float] = time.time,
        embeddings: EmbeddingCache | None = None,
    ) -> None:
        self._encoder = encoder
        self._batcher = batcher
        self._index = index
        self._clock = clock
        # A miss is looked up and then added: its vector is still here.
        self._embeddings = embeddings if embeddings is not None else EmbeddingCache(max_bytes=_MAX_EMBEDDING_BYTES)

    def by_name(self) -> dict[str, Method]:
        """List the methods."""
        return {
            "ping": self._ping,
            "search": self._search,
            "add": self._add,
            "remove_rows": self._remove_rows,
            "encode": self._encode,
            "stats": self._stats,
            "histograms": self._histograms,
        }

    async def _ping(self, _params: Any, _payload: bytes) -> tuple[Any, bytes]:
        return {"embedder": self._encoder.revision, "dim": self._encoder.dim}, b""

    async def _search(self, params: Any, _payload: bytes) -> tuple[Any, bytes]:
        match params:
            case {"partition": str(partition), "text": str(text), "top_k": int(top_k)} if 1 <= top_k <= 100:
                pass
            case _:
                raise MethodError("bad_params", "search takes partition, text and top_k from 1 to 100")
        if self._index.is_ready(partition):
            vector = await self._vector(text, Lane.URGENT)
        else:  # reading a partition takes no longer than encoding, so both run at once
            vector, _ = await asyncio.gather(self._vector(text, Lane.URGENT), self._index.ready(partition))
        try:
            found = await self._index.search(partition, vector, top_k)
        except NotBuiltYet as exc:
            raise MethodError("building", str(exc)) from exc
        except StoreDown as exc:
            raise MethodError("down", str(exc)) from exc
        neighbours = [[candidate.entry, candidate.similarity] for candidate in found]
        return {
            "neighbours": neighbours,
            "embedder": self._encoder.revision,
            "generation": self._index.generation,
        }, b""

    async def _add(self, params: Any, _payload: bytes) -> tuple[Any, bytes]:
        match params:
            case {"partition": str(partition), "text": str(text), "entry": str(entry), "ttl_s": int() | float()}:
                ttl_s = float(params["ttl_s"])
            case _:
                raise MethodError("bad_params", "add takes partition, text, entry and ttl_s")
        if not 0 < ttl_s < float("inf"):
            raise MethodError("bad_params", f"ttl_s is more than 0 and finite, not {ttl_s}")
        expires_at = self._clock() + ttl_s
        vector = await self._vector(text, Lane.PATIENT)
        try:
            is_saved = await self._index.add(partition, Row(entry, vector, expires_at))
        except StoreDown as exc:
            raise MethodError("down", str(exc)) from exc
        return {"is_saved": is_saved, "generation": self._index.generation}, b""

    async def _remove_rows(self, params: Any, _payload: bytes) -> tuple[Any, bytes]:
        match params:
            case {"rows": [*rows]} if all(_is_row(row) for row in rows):
                pass
            case _:
                raise MethodError("bad_params", "remove_rows takes rows, each a partition and an entry")
        try:
            num_removed = await self._index.remove_rows([(partition, entry) for partition, entry in rows])
        except StoreDown as exc:
            raise MethodError("store_down", str(exc)) from exc
        return {"num_removed": num_removed, "generation": self._index.generation}, b""

    async def _encode(self, params: Any, _payload: bytes) -> tuple[Any, bytes]:
        """Answer with (n, dim) float32, little-endian, row by row, as payload."""
        match params:
            case {"texts": [*texts]} if 1 <= len(texts) <= _MAX_TEXTS and all(isinstance(t, str) for t in texts):
                pass
            case _:
                raise MethodError("bad_params", f"encode takes 1 to {_MAX_TEXTS} texts")
        embeddings = await self._encode_all(texts)
        result = {
            "embedder": self._encoder.revision,
            "dim": self._encoder.dim,
            "num_tokens": [embedding.num_tokens for embedding in embeddings],
        }
        return result, np.stack([embedding.vector for embedding in embeddings]).astype("<f4").tobytes()

    async def _stats(self, _params: Any, _payload: bytes) -> tuple[Any, bytes]:
        counts, found = self._batcher.counts, self._embeddings.counts
        return {
            **self._index.numbers(),
            "waiting": self._batcher.num_waiting,
            "encoded": counts.num_items,
            "batches": counts.num_batches,
            "largest_batch": counts.largest,
            "embeddings": len(self._embeddings),
            "embeddings_bytes": self._embeddings.size_bytes,
            "embeddings_found": found.memory,
            "embeddings_found_shared": found.shared,
            "embeddings_joined": found.joined,
            "embeddings_encoded": found.encoded,
        }, b""

    async def _histograms(self, _params: Any, _payload: bytes) -> tuple[Any, bytes]:
        """Answer with bounds, cumulative counts and sum, by name."""
        counts = self._batcher.counts
        return {"queue_delay_seconds": counts.delays.dump(), "batch_size": counts.sizes.dump()}, b""

    async def _vector(self, text: str, lane: Lane) -> NDArray[np.float32]:
        [known] = await self._embeddings.find([text])
        if known is None:
            row = self._tokenize([text])[0]
            self._check_length(row, "the text")
            if not row.has_unknown:
                return (await self._embed(text, row, lane)).vector
        elif not known.has_unknown:
            return known.vector
        raise MethodError("unreadable", "the text holds a token that the model does not know")

    async def _encode_all(self, texts: Sequence[str]) -> list[Embedding]:
        """Encode what is not known in the patient lane, those of like length together, so that little is padded."""
        found = await self._embeddings.find(texts)
        missing: dict[str, int] = {}  # each text once, with its first place
        for place, (text, known) in enumerate(zip(texts, found, strict=True)):
            if known is None:
                missing.setdefault(text, place)
        rows = await asyncio.to_thread(self._tokenize, list(missing)) if missing else []
        for place, row in zip(missing.values(), rows, strict=True):
            self._check_length(row, f"text {place}")
        order = sorted(zip(missing, rows, strict=True), key=lambda pair: len(pair[1]))
        encoded = await asyncio.gather(*(self._embed(text, row, Lane.PATIENT) for text, row in order))
        told = {text: embedding for (text, _), embedding in zip(order, encoded, strict=True)}
        return [known if known is not None else told[text] for text, known in zip(texts, found, strict=True)]

    async def _embed(self, text: str, row: Tokens, lane: Lane) -> Embedding:
        async def encode() -> Embedding:
            vector = await self._batcher.submit(row, num_tokens=len(row), lane=lane)
            return Embedding(vector.copy(), len(row), row.has_unknown)  # a row alone would keep its whole batch

        return await self._embeddings.encode_once(text, encode, lane=lane)

    def _tokenize(self, texts: Sequence[str]) -> list[Tokens]:
        try:
            return self._encoder.tokenize(texts)
        except UnicodeEncodeError as exc:
            raise MethodError("bad_params", "a text holds half of a surrogate pair") from exc

    def _check_length(self, row: Tokens, which: str) -> None:
        if len(row) > self._encoder.max_tokens:
            limit = self._encoder.max_tokens
            message = f"{which} has {len(row)} tokens, {self._encoder.name} takes at most {limit}"
            raise MethodError("too_long", message)


def _is_row(row: object) -> bool:
    return isinstance(row, list) and len(row) == 2 and all(isinstance(name, str) for name in row)
