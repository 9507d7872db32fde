"""Pages moved as a decision says: within the pool, and between the pool and the swap space in host memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from backends.engine.attn.kv_store import KvStore
from backends.engine.sched.decision import Copy, Decision, Move


class PageMover:
    """Own the swap space of a store: a second set of its tensors in host memory, touched only as pages are used."""

    def __init__(self, store: KvStore, *, num_swap_pages: int) -> None:
        self._tensors = store.tensors
        self._swap = tuple(_host_pages(tensor, num_swap_pages) for tensor in self._tensors) if num_swap_pages else ()

    def move(self, decision: Decision) -> None:
        """Do a decision's saves, then its copies, then its loads; whole pages go, to the bit."""
        if decision.saves:
            self._move(self._tensors, self._swap, decision.saves)
        if decision.copies:
            self._move(self._tensors, self._tensors, decision.copies)
        if decision.loads:
            self._move(self._swap, self._tensors, decision.loads)

    def _move(
        self, sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor], moves: Sequence[Copy | Move]
    ) -> None:
        begin, end = [move.source for move in moves], [move.target for move in moves]
        for source, target in zip(sources, targets, strict=True):
            pages = source[torch.tensor(begin, device=source.device)]
            target[torch.tensor(end, device=target.device)] = pages.to(target.device)


def _host_pages(like: torch.Tensor, num_pages: int) -> torch.Tensor:
    size_bytes = num_pages * like[0].numel() * like.element_size()
    return torch.from_numpy(np.zeros(size_bytes, dtype=np.uint8)).view(like.dtype).view(num_pages, *like.shape[1:])
