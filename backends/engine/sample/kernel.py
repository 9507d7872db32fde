"""Draw tokens by the CPU kernel: what `sampler` does, all rows at once and without a sort of the whole vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from backends.engine.sample.noise import uniform
from backends.engine.sched.decision import Draw


def draw_tokens_by_kernel(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int | None]:
    """Return one token per row of float32 logits (N, V), `None` where a row is not made of numbers."""
    tokens: list[int] = torch.ops.lamina.draw(
        logits, torch.tensor(list(map(_numbers, draws)), dtype=torch.float64)
    ).tolist()
    return [None if token < 0 else token for token in tokens]


def _numbers(draw: Draw) -> tuple[float, int, float, float]:
    params = draw.params
    if params.temperature <= 0:
        return (0.0, 0, 1.0, 0.0)
    return (params.temperature, params.top_k, params.top_p, uniform(draw.seed, draw.position))
