"""Who lies near: the vectors of one partition, scanned directly while few, by FAISS when many."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from cache.encoder import Vectors
from orchestration.core import Candidate

_FIRST_CAPACITY = 1  # most partitions are one conversation's history with one question
_MAX_DEAD_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Row:
    """One entry's vector, (dim,) float32 of length 1, and the Unix time in seconds at which it ends."""

    entry: str
    vector: NDArray[np.float32]
    expires_at: float


class PartitionIndex:
    """The entries of one partition. `clock` gives Unix time in seconds; an expired row is never found.

    A row keeps its number from `add` until `compact`, in both forms: rows taken out are masked, never shifted, so
    that a number cannot come to mean another entry.
    """

    def __init__(self, dim: int, *, clock: Callable[[], float], max_direct_rows: int = 4096) -> None:
        self._dim = dim
        self._clock = clock
        self._max_direct_rows = max_direct_rows
        self._entries: list[str] = []
        self._numbers: dict[str, int] = {}
        self._vectors: Vectors = np.empty((0, dim), np.float32)
        self._expires_at: NDArray[np.float64] = np.empty(0, np.float64)  # 0: taken out
        self._large: faiss.IndexFlatIP | None = None

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def is_large(self) -> bool:
        """Tell whether FAISS holds the vectors."""
        return self._large is not None

    def __contains__(self, entry: str) -> bool:
        return entry in self._numbers

    def add(self, row: Row) -> None:
        """Add an entry, in place of its earlier row where there is one."""
        assert row.vector.shape == (self._dim,)
        self.remove(row.entry)
        if len(self._entries) == len(self._expires_at):
            self._make_room()
        number = len(self._entries)
        if self._large is not None:
            self._large.add(row.vector[None, :])
        else:
            self._vectors[number] = row.vector
        self._expires_at[number] = row.expires_at
        self._entries.append(row.entry)
        self._numbers[row.entry] = number
        if self._large is None and len(self._entries) > self._max_direct_rows:
            self._make_large()

    def remove(self, entry: str) -> bool:
        """Take an entry out; tells whether it was there."""
        number = self._numbers.pop(entry, None)
        if number is None:
            return False
        self._expires_at[number] = 0.0
        return True

    def search(self, vector: NDArray[np.float32], top_k: int) -> tuple[Candidate, ...]:
        """Return the at most `top_k` nearest living entries, nearest first, the newer first among equals."""
        count = len(self._entries)
        alive = self._expires_at[:count] > self._clock()
        wanted = min(top_k, int(alive.sum()))
        if wanted <= 0:
            return ()
        found = self._search_large(vector, wanted, alive) if self._large else self._scan(vector, wanted, alive)
        ranked = sorted(found, key=lambda pair: (-pair[1], -pair[0]))
        return tuple(Candidate(self._entries[number], similarity) for number, similarity in ranked)

    def rows(self) -> Iterator[Row]:
        """Give every living row."""
        now = self._clock()
        for number, entry in enumerate(self._entries):
            if self._expires_at[number] > now:
                yield Row(entry, self._vector(number), float(self._expires_at[number]))

    def expired(self) -> list[str]:
        """List the entries whose time is over and that still take room."""
        now = self._clock()
        return [entry for entry, number in self._numbers.items() if self._expires_at[number] <= now]

    def compact(self) -> None:
        """Give back the room of rows that are out or over; row numbers change."""
        rows = list(self.rows())
        capacity = max(_FIRST_CAPACITY, 2 * len(rows))
        self._entries = [row.entry for row in rows]
        self._numbers = {entry: number for number, entry in enumerate(self._entries)}
        self._expires_at = np.zeros(capacity, np.float64)
        self._expires_at[: len(rows)] = [row.expires_at for row in rows]
        self._large = None
        self._vectors = np.empty((capacity, self._dim), np.float32)
        for number, row in enumerate(rows):
            self._vectors[number] = row.vector
        if len(rows) > self._max_direct_rows:
            self._make_large()

    def _scan(self, vector: NDArray[np.float32], wanted: int, alive: NDArray[np.bool_]) -> list[tuple[int, float]]:
        scores = self._vectors[: len(alive)] @ vector  # (rows,)
        scores[~alive] = -np.inf
        best = np.argpartition(scores, -wanted)[-wanted:]
        return [(int(number), float(scores[number])) for number in best]

    def _search_large(
        self, vector: NDArray[np.float32], wanted: int, alive: NDArray[np.bool_]
    ) -> list[tuple[int, float]]:
        assert self._large is not None
        library: Any = faiss  # its own annotations do not know what its wrappers add
        selector = library.IDSelectorBitmap(np.packbits(alive, bitorder="little"))
        scores, numbers = self._large.search(vector[None, :], wanted, params=library.SearchParameters(sel=selector))
        return [(int(n), float(s)) for n, s in zip(numbers[0], scores[0], strict=True) if n >= 0]

    def _vector(self, number: int) -> NDArray[np.float32]:
        if self._large is not None:
            return np.array(self._large.reconstruct(number), np.float32)
        return np.array(self._vectors[number])

    def _make_room(self) -> None:
        num_dead = len(self._entries) - int((self._expires_at[: len(self._entries)] > self._clock()).sum())
        if num_dead > _MAX_DEAD_SHARE * len(self._entries):
            self.compact()
            return
        num_more = max(_FIRST_CAPACITY, len(self._entries))
        self._expires_at = np.concatenate([self._expires_at, np.zeros(num_more, np.float64)])
        if self._large is None:
            self._vectors = np.concatenate([self._vectors, np.empty((num_more, self._dim), np.float32)])

    def _make_large(self) -> None:
        self._large = faiss.IndexFlatIP(self._dim)
        self._large.add(self._vectors[: len(self._entries)])
        self._vectors = np.empty((0, self._dim), np.float32)
