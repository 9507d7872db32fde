"""The tensors that hold keys and values, laid out `[layer][page, kv_head, slot, dim]`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from backends.engine.attn.quantise import quantise
from backends.engine.model.shape import ModelShape

Ints = npt.NDArray[np.int64]
KV_DTYPES = {"bfloat16": torch.bfloat16, "int8": torch.int8, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class KvStore:
    """One tensor of keys and one of values per layer, each (num_pages, kv_heads, page_size, dim).

    Those of int8 have a float32 scale per token and head, (num_pages, kv_heads, page_size); others have none.
    `windows` says how many positions a layer looks back over, its own included; `None` is all.
    """

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    key_scales: tuple[torch.Tensor, ...]
    value_scales: tuple[torch.Tensor, ...]
    windows: tuple[int | None, ...]

    @classmethod
    def allocate(
        cls, shape: ModelShape, *, num_pages: int, page_size: int, dtype: torch.dtype, device: torch.device
    ) -> KvStore:
        """Reserve the pool; on the CPU memory is touched only as pages are first used."""
        size = (num_pages, shape.num_kv_heads, page_size, shape.head_dim)
        zeros = _lazy_zeros if device.type == "cpu" else _zeros

        def tensors(size: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
            return tuple(zeros(size, dtype=dtype, device=device) for _ in range(shape.num_layers))

        has_scales = dtype is torch.int8
        return cls(
            keys=tensors(size, dtype),
            values=tensors(size, dtype),
            key_scales=tensors(size[:-1], torch.float32) if has_scales else (),
            value_scales=tensors(size[:-1], torch.float32) if has_scales else (),
            windows=tuple(shape.window_of(layer) for layer in range(shape.num_layers)),
        )

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Return all tensors, each with a page per row."""
        return (*self.keys, *self.values, *self.key_scales, *self.value_scales)

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return a layer's keys, values, and the scales of each, which are empty where there are none."""
        if not self.key_scales:
            nothing = torch.empty(0, device=self.device)
            return self.keys[index], self.values[index], nothing, nothing
        return self.keys[index], self.values[index], self.key_scales[index], self.value_scales[index]

    def rows(self, slots: Ints) -> torch.Tensor:
        """Return where the heads of these slots lie, (slots * kv_heads,), as `write` takes it."""
        pages, offsets = np.divmod(slots, self.page_size)
        rows = (pages[:, None] * self.num_kv_heads + np.arange(self.num_kv_heads)) * self.page_size + offsets[:, None]
        return torch.from_numpy(rows.reshape(-1)).to(self.device)

    def write(self, index: int, rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store keys and values (N, kv_heads, dim) of a layer at `rows`."""
        dim = keys.shape[-1]
        stored_keys, stored_values, key_scales, value_scales = self.layer(index)
        for store, scales, new in ((stored_keys, key_scales, keys), (stored_values, value_scales, values)):
            if store.dtype is torch.int8:
                new, new_scales = quantise(new)
                scales.view(-1).index_copy_(0, rows, new_scales.reshape(-1))
            store.view(-1, dim).index_copy_(0, rows, new.reshape(-1, dim).to(store.dtype))

    @property
    def num_kv_heads(self) -> int:
        """Return how many heads keys and values have."""
        return self.keys[0].shape[1]

    @property
    def page_size(self) -> int:
        """Return how many tokens a page holds."""
        return self.keys[0].shape[2]

    @property
    def device(self) -> torch.device:
        """Return where the tensors are."""
        return self.keys[0].device


def _zeros(size: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.zeros(size, dtype=dtype, device=device)


def _lazy_zeros(size: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return zeros whose memory is not touched; torch's own fills them, and the pool would count as used at once."""
    size_bytes = math.prod(size) * dtype.itemsize
    return torch.from_numpy(np.zeros(size_bytes, dtype=np.uint8)).view(dtype).view(size)
