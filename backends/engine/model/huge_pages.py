"""Memory for weights in huge pages where the system has them: a processor reads ahead within a page, not across two."""

from __future__ import annotations

import contextlib
import mmap

import torch

_CHUNK_BYTES = 64 << 20
_ALIGNED_BYTES = 64


class HugePages:
    """Keep tensors in a few large pieces of memory, which live as long as a tensor in them does.

    Whole pieces are reserved, and touched only as far as tensors reach.
    """

    def __init__(self) -> None:
        self._piece = torch.empty(0, dtype=torch.uint8)
        self._used_bytes = 0

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a tensor that lies in this memory."""
        size_bytes = tensor.numel() * tensor.itemsize
        begin = -(-self._used_bytes // _ALIGNED_BYTES) * _ALIGNED_BYTES
        if begin + size_bytes > len(self._piece):
            self._piece, begin = _reserve(max(_CHUNK_BYTES, size_bytes)), 0
        self._used_bytes = begin + size_bytes
        place = self._piece[begin : begin + size_bytes].view(tensor.dtype).view(tensor.shape)
        return place.copy_(tensor)


def _reserve(size_bytes: int) -> torch.Tensor:
    piece = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a system without them gives plain pages
            piece.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(piece, dtype=torch.uint8)
