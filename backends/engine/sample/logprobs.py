"""Log-probabilities under the model itself: before temperature, top_k and top_p, and always finite."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from backends.engine.sample.sampler import largest
from backends.engine.types import TokenLogprobs

_LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot carry."""


def token_logprobs(logits: torch.Tensor, tokens: Sequence[int], counts: Sequence[int]) -> list[TokenLogprobs]:
    """Return, for each row of float32 logits (N, V), its token's log-probability and those of the `counts` best."""
    logprobs = torch.log_softmax(logits, dim=-1).clamp_(min=_LOWEST)
    return [_of_row(row, token, count) for row, token, count in zip(logprobs, tokens, counts, strict=True)]


def _of_row(logprobs: torch.Tensor, token: int, count: int) -> TokenLogprobs:
    ids = largest(logprobs, count) if count else logprobs.new_empty(0, dtype=torch.long)
    top = tuple(zip(ids.tolist(), logprobs[ids].tolist(), strict=True))
    return TokenLogprobs(float(logprobs[token]), top)
