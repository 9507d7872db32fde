"""Attention in plain torch: gather each row's pages, then scaled dot products. The reference for every other way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from backends.engine.attn.kv_store import KvStore
from backends.engine.runner.batch import Batch


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows that attend together: R rows of C tokens each, over G pages each (the spare ones masked)."""

    tokens: torch.Tensor  # (R * C,) where their tokens are in the step
    runs: torch.Tensor  # (R * kv_heads * G,) which runs of one head's page to gather
    masks: dict[int | None, torch.Tensor]  # by window: (R, 1, C, G * page_size) True where a token may look
    num_rows: int


class ReferencePlan:
    """One step's attention over a store: where to write, what to gather, who may look where."""

    def __init__(self, store: KvStore, batch: Batch) -> None:
        self._store = store
        self._rows = store.rows(batch.slots)
        self._groups = [self._group(batch, rows) for rows in _alike(batch)]

    def write_kv(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store keys and values (N, kv_heads, dim) of a layer where the batch says."""
        self._store.write(layer, self._rows, keys, values)

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        """Return the attention of queries (N, heads, dim), as (N, heads * dim)."""
        if len(self._groups) == 1:
            return self._attend(layer, queries, self._groups[0])
        result = queries.new_empty(len(queries), queries.shape[1] * queries.shape[2])
        for group in self._groups:
            result[group.tokens] = self._attend(layer, queries[group.tokens], group)
        return result

    def _attend(self, layer: int, queries: torch.Tensor, group: _Group) -> torch.Tensor:
        num_tokens, num_heads, dim = queries.shape
        num_rows, num_kv_heads = group.num_rows, self._store.num_kv_heads
        stored_keys, stored_values, key_scales, value_scales = self._store.layer(layer)
        keys = self._gather(stored_keys, key_scales, group, queries.dtype)
        values = self._gather(stored_values, value_scales, group, queries.dtype)
        mask = group.masks[self._store.windows[layer]]
        if num_tokens == num_rows:
            # One token per row: the query heads of a kv head take the place of the tokens, so nothing is repeated.
            grouped = queries.view(num_rows, num_kv_heads, num_heads // num_kv_heads, dim)
            return F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask).reshape(num_rows, -1)
        per_row = queries.view(num_rows, -1, num_heads, dim).transpose(1, 2)
        attended = F.scaled_dot_product_attention(per_row, keys, values, attn_mask=mask, enable_gqa=True)
        return attended.transpose(1, 2).reshape(num_tokens, -1)

    def _gather(self, store: torch.Tensor, scales: torch.Tensor, group: _Group, dtype: torch.dtype) -> torch.Tensor:
        """Return the keys or values (R, kv_heads, S, dim) that a group looks at."""
        _, num_kv_heads, page_size, dim = store.shape
        runs = store.view(-1, page_size * dim).index_select(0, group.runs)
        numbers = runs.view(group.num_rows, num_kv_heads, -1, dim)
        if store.dtype is not torch.int8:
            return numbers.to(dtype)
        by = scales.view(-1, page_size).index_select(0, group.runs).view(group.num_rows, num_kv_heads, -1, 1)
        return (numbers * by).to(dtype)

    def _group(self, batch: Batch, rows: list[int]) -> _Group:
        num_kv_heads, size, device = self._store.num_kv_heads, self._store.page_size, self._store.device
        count = batch.counts[rows[0]]
        num_pages = max(len(batch.pages[row]) for row in rows)
        table = np.zeros((len(rows), num_pages), dtype=np.int64)
        for index, row in enumerate(rows):
            table[index, : len(batch.pages[row])] = batch.pages[row]
        runs = table[:, None, :] * num_kv_heads + np.arange(num_kv_heads)[None, :, None]
        tokens = np.array([batch.begins[row] for row in rows])[:, None] + np.arange(count)
        distances = batch.positions[tokens][:, :, None] - np.arange(num_pages * size)
        return _Group(
            tokens=torch.from_numpy(tokens.reshape(-1)).to(device),
            runs=torch.from_numpy(runs.reshape(-1)).to(device),
            masks={window: _mask(distances, window).to(device) for window in set(self._store.windows)},
            num_rows=len(rows),
        )


def _mask(distances: npt.NDArray[np.int64], window: int | None) -> torch.Tensor:
    """Tell for each token (R, C) and slot whether it may look there, (R, 1, C, S): itself and what is near before."""
    is_seen = distances >= 0
    if window is not None:
        is_seen &= distances < window
    return torch.from_numpy(is_seen[:, None])


def _alike(batch: Batch) -> Iterable[list[int]]:
    """Part the rows into groups of one count and of lengths within a factor of two, so that little is padded."""
    groups: dict[tuple[int, int], list[int]] = {}
    for row, (count, pages) in enumerate(zip(batch.counts, batch.pages, strict=True)):
        groups.setdefault((count, len(pages).bit_length()), []).append(row)
    return groups.values()
