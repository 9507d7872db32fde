"""Who lies near: the vectors of one partition, all looked at while few, by an approximate index when many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cache.approximate import RERANKED, ApproximateIndex
from cache.vector_table import VectorTable
from orchestration.core import Candidate

_GROWN = 4
"""An index that has grown by this factor since it was trained is trained anew: its lists have become long."""


@dataclass(frozen=True, slots=True)
class Row:
    """One entry's vector, (dim,) float32 of length 1, and the Unix time in seconds at which it ends."""

    entry: str
    vector: NDArray[np.float32]
    expires_at: float


@dataclass(frozen=True, slots=True)
class IndexLimits:
    """From which size a partition is searched how.

    Up to `approximate_above` rows all are looked at: exact, and at 8,192 rows about half a millisecond, a quarter of
    what the encoder takes. Above it an approximate index is built aside. Meanwhile all rows are looked at, up to
    `max_scanned`, where that takes some 2 ms of everybody's time.
    """

    approximate_above: int = 8_192
    max_scanned: int = 32_768

    def __post_init__(self) -> None:
        if not 1 <= self.approximate_above <= self.max_scanned:
            raise ValueError("approximate_above is at least 1 and at most max_scanned")

    @classmethod
    def above(cls, num_rows: int) -> IndexLimits:
        """Have an index above `num_rows` rows, and look at four times as many while there is none."""
        return cls(approximate_above=num_rows, max_scanned=4 * num_rows)


class NotBuiltYet(Exception):
    """The partition is too large to be looked through, and its index is still being built."""


@dataclass(frozen=True, slots=True)
class Build:
    """What a thread needs to build a partition's approximate index; the table may go on changing."""

    table: VectorTable
    numbers: NDArray[np.int64]

    def run(self) -> ApproximateIndex:
        """Build the index; takes 0.2 s for 8,192 rows and about 20 s for a million."""
        return ApproximateIndex.build(self.table, self.numbers)


class PartitionIndex:
    """The entries of one partition. `clock` gives Unix time in seconds; an expired row is never found.

    What is found was ranked by the stored vectors, whatever proposed it, and lives at that moment. A row's number is
    given to another entry only after it was taken out everywhere.
    """

    def __init__(self, dim: int, *, clock: Callable[[], float], limits: IndexLimits | None = None) -> None:
        self._dim = dim
        self._clock = clock
        self._limits = limits or IndexLimits()
        self._clear()

    def _clear(self) -> None:
        self._table = VectorTable(self._dim)
        self._entries: list[str | None] = []
        self._numbers: dict[str, int] = {}
        self._free: list[int] = []
        self._expires_at: NDArray[np.float64] = np.empty(0, np.float64)  # 0: taken out
        self._ages: NDArray[np.int64] = np.empty(0, np.int64)  # of two, the larger was added later
        self._num_added = 0
        self._approximate: ApproximateIndex | None = None
        self._building: Build | None = None
        self._changed_while_building: set[int] = set()

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, entry: str) -> bool:
        return entry in self._numbers

    @property
    def approximate(self) -> ApproximateIndex | None:
        """Give the approximate index, if one is in use."""
        return self._approximate

    def reserve(self, num_rows: int) -> None:
        """Make room for `num_rows` rows at once."""
        self._table.reserve(num_rows)
        self._make_room(num_rows)

    def add(self, row: Row) -> None:
        """Add an entry, in place of its earlier row where there is one."""
        self.remove(row.entry)
        number = self._free.pop() if self._free else len(self._entries)
        self._table.write(number, row.vector)
        if number == len(self._entries):
            self._entries.append(row.entry)
            if number == len(self._expires_at):
                self._make_room(number + 1 + number // 4)
        self._entries[number] = row.entry
        self._numbers[row.entry] = number
        self._expires_at[number] = row.expires_at
        self._num_added += 1
        self._ages[number] = self._num_added
        if self._approximate is not None:
            self._approximate.add(np.array([number]), self._table)
        self._note_changed(number)

    def remove(self, entry: str) -> bool:
        """Take an entry out; tells whether it was there."""
        number = self._numbers.pop(entry, None)
        if number is None:
            return False
        self._entries[number] = None
        self._expires_at[number] = 0.0
        self._free.append(number)
        if self._approximate is not None:
            self._approximate.remove(np.array([number]))
        self._note_changed(number)
        return True

    def search(self, vector: NDArray[np.float32], top_k: int) -> tuple[Candidate, ...]:
        """Return the at most `top_k` nearest living entries, nearest first, the newer first among equals.

        Raises `NotBuiltYet` for a partition too large to be looked through that has no index yet.
        """
        if self._approximate is not None:
            found = self._search_approximately(self._approximate, vector, top_k)
        elif len(self) > self._limits.max_scanned:
            raise NotBuiltYet(f"the index over {len(self)} entries is being built")
        else:
            found = self._scan(vector, top_k)
        ranked = sorted(found, key=lambda pair: (-pair[1], -self._ages[pair[0]]))
        return tuple(Candidate(self._entry(number), similarity) for number, similarity in ranked)

    def rows(self) -> Iterator[Row]:
        """Give every living row."""
        now = self._clock()
        for entry, number in self._numbers.items():
            if self._expires_at[number] > now:
                yield Row(entry, self._table.read(number), float(self._expires_at[number]))

    def expired(self) -> list[str]:
        """List the entries whose time is over and that still take room."""
        ends = self._expires_at[: len(self._entries)]
        return [self._entry(int(number)) for number in np.flatnonzero((ends > 0.0) & (ends <= self._clock()))]

    def plan_build(self) -> Build | None:
        """Return what to build an index from where one is due; at most one is under way."""
        num_built = self._approximate.num_built if self._approximate is not None else 0
        if self._building is not None or len(self) <= max(self._limits.approximate_above, _GROWN * num_built):
            return None
        numbers = np.flatnonzero(self._expires_at[: len(self._entries)] > 0.0).astype(np.int64)
        self._building = Build(self._table, numbers)
        self._changed_while_building.clear()
        return self._building

    def install(self, build: Build, built: ApproximateIndex) -> None:
        """Search by what was built, brought up to what changed meanwhile; one that is out of date is let go."""
        if build is not self._building:
            return
        changed = np.array(sorted(self._changed_while_building), np.int64)
        built.remove(changed)
        built.add(changed[self._expires_at[changed] > 0.0], self._table)
        self._approximate = built
        self._building = None
        self._changed_while_building.clear()

    def compact(self) -> None:
        """Give back the room of rows that are out or over, where it is most of the room and little is left to move."""
        if len(self) > min(len(self._entries) // 2, self._limits.approximate_above):
            return
        rows = list(self.rows())
        self._clear()
        self.reserve(len(rows))
        self.extend(rows)

    def extend(self, rows: Iterable[Row]) -> None:
        """Add rows."""
        for row in rows:
            self.add(row)

    def _scan(self, vector: NDArray[np.float32], top_k: int) -> list[tuple[int, float]]:
        scores = self._table.scores(vector)  # (rows,)
        alive = self._expires_at[: len(scores)] > self._clock()
        num_alive = np.count_nonzero(alive)
        if num_alive < len(scores):
            scores[~alive] = -np.inf
        wanted = min(top_k, int(num_alive))
        best = np.argpartition(scores, -wanted)[-wanted:] if wanted else np.empty(0, np.intp)
        return list(zip(best.tolist(), scores[best].tolist(), strict=True))

    def _search_approximately(
        self, index: ApproximateIndex, vector: NDArray[np.float32], top_k: int
    ) -> list[tuple[int, float]]:
        numbers = self._proposed(index, vector, top_k)
        scores = self._table.gather(numbers) @ vector
        best = np.argsort(-scores, kind="stable")[:top_k]
        return [(int(numbers[place]), float(scores[place])) for place in best]

    def _proposed(self, index: ApproximateIndex, vector: NDArray[np.float32], top_k: int) -> NDArray[np.int64]:
        """Return living rows; where most of the nearest are over and not swept yet, of ten times as many."""
        now = self._clock()
        depth = max(RERANKED, 8 * top_k)
        for some in (depth, 10 * depth):
            numbers = index.search(vector, some)
            alive = numbers[self._expires_at[numbers] > now]
            if len(alive) >= top_k or len(numbers) < some:
                break
        return alive

    def _entry(self, number: int) -> str:
        entry = self._entries[number]
        assert entry is not None, "a row that lives has a name"
        return entry

    def _note_changed(self, number: int) -> None:
        if self._building is not None:
            self._changed_while_building.add(number)

    def _make_room(self, num_rows: int) -> None:
        num_more = num_rows - len(self._expires_at)
        if num_more > 0:
            self._expires_at = np.concatenate([self._expires_at, np.zeros(num_more, np.float64)])
            self._ages = np.concatenate([self._ages, np.zeros(num_more, np.int64)])
