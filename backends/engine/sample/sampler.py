"""Draw tokens: a pure function of (logits, params, seed, position), row by row independent of the batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from backends.engine.sample.noise import uniform
from backends.engine.sched.decision import Draw

_SHORT_LIST = 256


def draw_tokens(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int | None]:
    """Return one token per row of float32 logits (N, V), `None` where a row is not made of numbers.

    Temperature 0 takes the most likely token, of equals the lowest id. Otherwise a token is drawn by inverting the
    distribution at `uniform(seed, position)`, after temperature, then top_k, then top_p.
    """
    best, tokens = logits.max(dim=-1)  # of equal values the first
    drawn: list[int | None] = tokens.tolist()
    finite = torch.isfinite(best).tolist()
    rows = [index for index, draw in enumerate(draws) if draw.params.temperature > 0 and finite[index]]
    if rows:
        chosen = [draws[index] for index in rows]
        for index, token in zip(rows, _draw_random(logits[rows], best[rows], chosen), strict=True):
            drawn[index] = token
    return [token if is_finite else None for token, is_finite in zip(drawn, finite, strict=True)]


def _draw_random(logits: torch.Tensor, best: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    device = logits.device
    temperatures = torch.tensor([draw.params.temperature for draw in draws], dtype=torch.float32, device=device)
    # Against overflow at tiny temperatures the best logit is taken off first: it weighs exp(0).
    weights = ((logits - best[:, None]) / temperatures.clamp(min=1e-6)[:, None]).exp_()
    for index, draw in enumerate(draws):
        if draw.params.top_k or draw.params.top_p < 1:
            weights[index] = _restrict(weights[index], top_k=draw.params.top_k, top_p=draw.params.top_p)
    levels = torch.tensor([uniform(draw.seed, draw.position) for draw in draws], dtype=torch.float64, device=device)
    sums = weights.cumsum(dim=-1, dtype=torch.float64)
    # The first id whose running sum exceeds the level: one with weight 0 never does so before its predecessor.
    picked = torch.searchsorted(sums, (levels * sums[:, -1])[:, None], right=True)[:, 0]
    return picked.tolist()


def _restrict(weights: torch.Tensor, *, top_k: int, top_p: float) -> torch.Tensor:
    """Return the weights (V,) with all but the `top_k` largest, then all but the `top_p` of their mass, set to 0.

    Of equal weights the lowest id counts as the larger. At least one token stays.
    """
    vocab_size = weights.shape[0]
    size = min(top_k or vocab_size, vocab_size)
    order = largest(weights, min(size, _SHORT_LIST))
    if top_p >= 1 and size > _SHORT_LIST:
        order = largest(weights, size)
    elif top_p < 1:
        total = weights.sum(dtype=torch.float64) if size == vocab_size else None
        if size > _SHORT_LIST and (total is None or weights[order].sum(dtype=torch.float64) < top_p * total):
            order = largest(weights, size)
        sums = weights[order].cumsum(dim=0, dtype=torch.float64)
        limit = top_p * (sums[-1] if total is None else total)
        order = order[: int((sums < limit).sum()) + 1]
    kept = torch.zeros_like(weights)
    kept[order] = weights[order]
    return kept


def largest(weights: torch.Tensor, count: int) -> torch.Tensor:
    """Return the ids of the `count` largest weights, largest first, of equals the lowest id first."""
    if count >= weights.shape[0]:
        return torch.argsort(weights, descending=True, stable=True)
    bar = torch.topk(weights, count, sorted=True).values[-1]
    candidates = torch.nonzero(weights >= bar)[:, 0]
    order = torch.argsort(weights[candidates], descending=True, stable=True)
    return candidates[order[:count]]
