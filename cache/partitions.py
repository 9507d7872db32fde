"""All partitions that are in memory, the least used leaving first."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from cache.index import Build, IndexLimits, PartitionIndex, Row
from orchestration.core import Candidate


class Partitions:
    """Hold partitions by name, at most `max_rows` rows and `max_partitions` of them: the least used are forgotten.

    `generation` counts the changes. A forgotten partition is no longer `in`, and is loaded anew by whoever keeps
    the vectors.
    """

    def __init__(
        self,
        dim: int,
        *,
        clock: Callable[[], float] = time.time,
        max_rows: int = 200_000,
        max_partitions: int = 50_000,
        limits: IndexLimits | None = None,
    ) -> None:
        self.generation = 0
        self._dim = dim
        self._clock = clock
        self._max_rows = max_rows
        self._max_partitions = max_partitions
        self._limits = limits or IndexLimits()
        self._by_name: OrderedDict[str, PartitionIndex] = OrderedDict()
        self._num_rows = 0
        self._grown: set[str] = set()  # since it was last asked which of them need an index

    @property
    def is_full(self) -> bool:
        """Tell whether one more row would push another out."""
        return self._num_rows >= self._max_rows or len(self._by_name) >= self._max_partitions

    @property
    def num_rows(self) -> int:
        """Count the rows in memory, expired ones that were not swept yet included."""
        return self._num_rows

    @property
    def num_approximate(self) -> int:
        """Count the partitions that are searched by an approximate index."""
        return sum(index.approximate is not None for index in self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, partition: str) -> bool:
        return partition in self._by_name

    def open(self, partition: str) -> None:
        """Have the partition in memory, empty where it was not."""
        if partition not in self._by_name:
            self._by_name[partition] = self.new_index()
        self._use(partition)

    def new_index(self) -> PartitionIndex:
        """Make an index to be filled aside and then `put`."""
        return PartitionIndex(self._dim, clock=self._clock, limits=self._limits)

    def put(self, partition: str, index: PartitionIndex) -> None:
        """Take in a filled index; rows of a partition that has come to be meanwhile stay, being newer."""
        self.generation += len(index)
        if partition in self._by_name:
            newer = self._by_name[partition]
            self._num_rows -= len(newer)
            newer.extend(row for row in index.rows() if row.entry not in newer)
            index = newer
        self._by_name[partition] = index
        self._num_rows += len(index)
        self._grown.add(partition)
        self._use(partition)

    def add(self, partition: str, row: Row) -> None:
        """Add a row, once per entry."""
        self.open(partition)
        index = self._by_name[partition]
        self._num_rows -= len(index)
        index.add(row)
        self._num_rows += len(index)
        self._grown.add(partition)
        self.generation += 1
        self._use(partition)

    def remove(self, partition: str, entry: str) -> bool:
        """Take an entry out of a partition; tells whether it was there."""
        index = self._by_name.get(partition)
        was_there = index is not None and index.remove(entry)
        self._num_rows -= was_there
        self.generation += was_there
        return was_there

    def search(self, partition: str, vector: NDArray[np.float32], top_k: int) -> tuple[Candidate, ...]:
        """Return the nearest living entries of the partition, nearest first; raises `NotBuiltYet`."""
        if partition not in self._by_name:
            return ()
        self._by_name.move_to_end(partition)
        return self._by_name[partition].search(vector, top_k)

    def plan_builds(self) -> Iterator[tuple[PartitionIndex, Build]]:
        """Give what is to be built for each partition that has become large, for `install` to be told of."""
        while self._grown:
            index = self._by_name.get(self._grown.pop())
            build = index.plan_build() if index is not None else None
            if index is not None and build is not None:
                yield index, build

    def names(self) -> list[str]:
        """List the partitions in memory, the least used first."""
        return list(self._by_name)

    def sweep(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Drop what is over in these partitions; returns the entries by partition."""
        swept: dict[str, list[str]] = {}
        for name in names:
            index = self._by_name.get(name)
            over = index.expired() if index is not None else []
            if index is not None and over:
                swept[name] = over
                for entry in over:
                    index.remove(entry)
                index.compact()
                self._num_rows -= len(over)
        return swept

    def whole(self) -> Iterator[tuple[str, Iterator[Row]]]:
        """Give every partition with its living rows, the least used first."""
        return ((name, index.rows()) for name, index in self._by_name.items())

    def clear(self) -> None:
        """Forget all partitions."""
        self._by_name.clear()
        self._grown.clear()
        self._num_rows = 0
        self.generation += 1

    def _use(self, partition: str) -> None:
        self._by_name.move_to_end(partition)
        while len(self._by_name) > 1 and (self._num_rows > self._max_rows or len(self._by_name) > self._max_partitions):
            _, forgotten = self._by_name.popitem(last=False)
            self._num_rows -= len(forgotten)
