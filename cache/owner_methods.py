"""What the owner answers: look-ups, additions and vectors, over encoder, batcher and index."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cache.batcher import Batcher, Lane
from cache.encoder import Encoder, Tokens, Vectors
from cache.index import NotBuiltYet, Row
from cache.store import StoreDown
from orchestration.core import Candidate
from orchestration.core.rpc import Method

_MAX_REMEMBERED = 2048
_MAX_TEXTS = 2048

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

    async def remove(self, entry: str) -> int:
        """Take an entry out wherever it is known to be; returns of how many partitions."""
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
        self, encoder: Encoder, batcher: TextBatcher, index: VectorIndex, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._encoder = encoder
        self._batcher = batcher
        self._index = index
        self._clock = clock
        # A miss is looked up and then added: its vector is still here.
        self._remembered: OrderedDict[str, NDArray[np.float32]] = OrderedDict()

    def by_name(self) -> dict[str, Method]:
        """List the methods."""
        return {
            "ping": self._ping,
            "search": self._search,
            "add": self._add,
            "remove": self._remove,
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
        # Reading a partition that is not in memory takes no longer than encoding, so both run at once.
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

    async def _remove(self, params: Any, _payload: bytes) -> tuple[Any, bytes]:
        match params:
            case {"entry": str(entry)}:
                num_removed = await self._index.remove(entry)
                return {"num_removed": num_removed, "generation": self._index.generation}, b""
            case _:
                raise MethodError("bad_params", "remove takes entry")

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
        rows = await asyncio.to_thread(self._tokenize, texts)
        for place, row in enumerate(rows):
            self._check_length(row, f"text {place}")
        vectors = await self._encode_all(rows)
        result = {
            "embedder": self._encoder.revision,
            "dim": self._encoder.dim,
            "num_tokens": [len(row) for row in rows],
        }
        return result, vectors.astype("<f4").tobytes()

    async def _stats(self, _params: Any, _payload: bytes) -> tuple[Any, bytes]:
        counts = self._batcher.counts
        return {
            **self._index.numbers(),
            "waiting": self._batcher.num_waiting,
            "encoded": counts.num_items,
            "batches": counts.num_batches,
            "largest_batch": counts.largest,
        }, b""

    async def _histograms(self, _params: Any, _payload: bytes) -> tuple[Any, bytes]:
        """Answer with bounds, cumulative counts and sum, by name."""
        counts = self._batcher.counts
        return {"queue_delay_seconds": counts.delays.dump(), "batch_size": counts.sizes.dump()}, b""

    async def _vector(self, text: str, lane: Lane) -> NDArray[np.float32]:
        known = self._remembered.get(text)
        if known is not None:
            self._remembered.move_to_end(text)
            return known
        row = self._tokenize([text])[0]
        self._check_length(row, "the text")
        if row.has_unknown:
            raise MethodError("unreadable", "the text holds a token that the model does not know")
        vector = await self._batcher.submit(row, num_tokens=len(row), lane=lane)
        self._remembered[text] = vector
        if len(self._remembered) > _MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        return vector

    async def _encode_all(self, rows: Sequence[Tokens]) -> Vectors:
        """Encode all rows in the patient lane, those of like length together, so that little is padded."""
        order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
        vectors = np.empty((len(rows), self._encoder.dim), np.float32)
        async with asyncio.TaskGroup() as group:
            for place in order:
                group.create_task(self._encode_into(vectors, place, rows[place]))
        return vectors

    async def _encode_into(self, vectors: Vectors, place: int, row: Tokens) -> None:
        vectors[place] = await self._batcher.submit(row, num_tokens=len(row), lane=Lane.PATIENT)

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
