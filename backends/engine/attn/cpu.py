"""Attention by the CPU kernels: keys and values are read where they lie, page by page."""

from __future__ import annotations

import numpy as np
import torch

from backends.engine.attn.kv_store import KvStore
from backends.engine.runner.batch import Batch

_TILE_QUERIES = 64
"""Queries of one kv head that look at the same pages at once; as in look.h."""


class CpuPlan:
    """One step's attention over a store, as the reference plans it; the arrays are what the kernels take.

    `slots` (N,) int64 says where each token's keys and values go; `table` (R, P) int32 has each row's pages; `tiles`
    (T, 4) int32 has runs of tokens of one row: the row, the first token, how many, and the position of the first.
    """

    def __init__(self, store: KvStore, batch: Batch, *, num_heads: int) -> None:
        self._store = store
        self.slots = torch.from_numpy(batch.slots)
        self.table = torch.from_numpy(_table(batch))
        self.tiles = torch.from_numpy(_tiles(batch, size=max(1, _TILE_QUERIES * store.num_kv_heads // num_heads)))

    def stored(self, layer: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the keys and values of a layer, and the scales of each."""
        return self._store.layer(layer)

    def window(self, layer: int) -> int:
        """Return how many positions a layer looks back over; 0 is all."""
        return self._store.windows[layer] or 0

    def write_kv(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store keys and values (N, kv_heads, dim) of a layer where the batch says."""
        self._store.write(layer, self._store.rows(self.slots.numpy()), keys, values)

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """Return the attention of queries (N, heads, dim), as (N, heads * dim)."""
        where = (*self.stored(layer), self.table, self.tiles, self.window(layer))
        found: torch.Tensor = torch.ops.lamina.attend(queries.contiguous(), *where)
        return found.view(len(queries), -1)


def _table(batch: Batch) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    table = np.zeros((len(batch.pages), max(map(len, batch.pages))), dtype=np.int32)
    for row, pages in enumerate(batch.pages):
        table[row, : len(pages)] = pages
    return table


def _tiles(batch: Batch, *, size: int) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    """Part each row's tokens into tiles of `size`; those with the most to look at come first, to end together."""
    tiles = [
        (row, begin + offset, min(size, count - offset), length - count + offset)
        for row, (begin, count, length) in enumerate(zip(batch.begins, batch.counts, batch.lengths, strict=True))
        for offset in range(0, count, size)
    ]
    tiles.sort(key=lambda tile: -tile[2] * (tile[2] + tile[3]))
    return np.array(tiles, dtype=np.int32)
