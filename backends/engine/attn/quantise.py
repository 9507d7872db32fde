"""Keys and values as integers: one scale per token and head, so that no token's rounding depends on another's."""

from __future__ import annotations

import torch

MOST = 127
"""The largest magnitude of an integer."""
_LEAST = 1e-30


def quantise(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return numbers (..., dim) as int8 (..., dim) and float32 scales (...): integer * scale is nearly the number.

    The largest magnitude becomes 127, halves round to even, and what is below 1e-30 counts as 0; as in store.h.
    """
    numbers = numbers.float()
    largest = numbers.abs().amax(dim=-1, keepdim=True)
    by = torch.where(largest > _LEAST, MOST / largest, 0.0)
    return (numbers * by).round().to(torch.int8), (largest / MOST).squeeze(-1)
