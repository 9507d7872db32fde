"""The tensors that hold keys and values, laid out `[layer][page, kv_head, slot, dim]`."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
import torch

from backends.engine.model.shape import ModelShape


@dataclass(frozen=True, slots=True)
class KvStore:
    """One tensor of keys and one of values per layer, each (num_pages, kv_heads, page_size, dim)."""

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]

    @classmethod
    def allocate(
        cls, shape: ModelShape, *, num_pages: int, page_size: int, dtype: torch.dtype, device: torch.device
    ) -> KvStore:
        """Reserve the pool; on the CPU memory is touched only as pages are first used."""
        size = (num_pages, shape.num_kv_heads, page_size, shape.head_dim)

        zeros = _lazy_zeros if device.type == "cpu" else _zeros

        def tensors() -> tuple[torch.Tensor, ...]:
            return tuple(zeros(size, dtype=dtype, device=device) for _ in range(shape.num_layers))

        return cls(tensors(), tensors())

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Return all tensors, each with a page per row."""
        return tuple(tensor for field in fields(self) for tensor in getattr(self, field.name))

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
