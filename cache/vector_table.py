"""Vectors by row number, in blocks: growing copies little, and a row never moves while it lives."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from cache.encoder import Vectors

_BLOCK_ROWS = 4096  # 6 MB of 384 dimensions
_GATHERED_ONE_BY_ONE = 256


class VectorTable:
    """Hold (dim,) float32 vectors under the numbers 0, 1, 2 and so on.

    The first block grows by a quarter, since most partitions hold a row or a few; from then on a block is added.
    Rows that are written no more may be read by another thread.
    """

    def __init__(self, dim: int, *, block_rows: int = _BLOCK_ROWS) -> None:
        self._dim = dim
        self._block_rows = block_rows
        self._blocks: list[Vectors] = [np.empty((0, dim), np.float32)]
        self._num_rows = 0

    def __len__(self) -> int:
        return self._num_rows

    def reserve(self, num_rows: int) -> None:
        """Make room for `num_rows` rows in all, without more for those beyond."""
        self._grow_first(min(num_rows, self._block_rows))
        while self._capacity() < num_rows:
            self._blocks.append(np.empty((self._block_rows, self._dim), np.float32))

    def write(self, number: int, vector: NDArray[np.float32]) -> None:
        """Put a vector at `number`: a row's that is there, or the next one's."""
        assert vector.shape == (self._dim,)
        assert 0 <= number <= self._num_rows
        if number == self._capacity():
            self.reserve(number + 1 + (len(self._blocks[0]) // 4 if number < self._block_rows else 0))
        self._blocks[number // self._block_rows][number % self._block_rows] = vector
        self._num_rows = max(self._num_rows, number + 1)

    def read(self, number: int) -> NDArray[np.float32]:
        """Return a copy of one row."""
        assert 0 <= number < self._num_rows
        return np.array(self._blocks[number // self._block_rows][number % self._block_rows])

    def gather(self, numbers: NDArray[np.int64]) -> Vectors:
        """Return copies of rows in the order of their numbers, (n, dim)."""
        found: Vectors = np.empty((len(numbers), self._dim), np.float32)
        places, within = np.divmod(numbers, self._block_rows)
        if len(numbers) <= _GATHERED_ONE_BY_ONE:
            for row, (place, inside) in enumerate(zip(places.tolist(), within.tolist(), strict=True)):
                found[row] = self._blocks[place][inside]
            return found
        for place in np.unique(places):
            chosen = places == place
            found[chosen] = self._blocks[place][within[chosen]]
        return found

    def scores(self, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return every row's inner product with `vector`, (rows,)."""
        if self._num_rows <= self._block_rows:
            return self._blocks[0][: self._num_rows] @ vector
        return np.concatenate([block @ vector for block in self.blocks()])

    def blocks(self) -> Iterator[Vectors]:
        """Give the rows block by block; the arrays are the table's own."""
        for place, block in enumerate(self._blocks):
            begin = place * self._block_rows
            if begin < self._num_rows:
                yield block[: self._num_rows - begin]

    def _grow_first(self, num_rows: int) -> None:
        held = len(self._blocks[0])
        if num_rows > held:
            self._blocks[0] = np.concatenate([self._blocks[0], np.empty((num_rows - held, self._dim), np.float32)])

    def _capacity(self) -> int:
        return len(self._blocks[0]) + (len(self._blocks) - 1) * self._block_rows
