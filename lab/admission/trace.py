"""A trace of requests: when each comes, how long its prompt is, and how long its answer will turn out to be."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request; `output_tokens` is known to nobody before its end, `max_tokens` is what it asked for."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class TraceShape:
    """Poisson arrivals; lengths are log-normal with these means, and answers end at `max_tokens` at the latest."""

    rate_per_s: float
    num_requests: int
    mean_prompt_tokens: float
    mean_output_tokens: float
    max_tokens: int = 1024
    max_prompt_tokens: int = 2048
    spread: float = 0.8
    """The standard deviation of the lengths' logarithm."""


def make_trace(shape: TraceShape, *, seed: int) -> Sequence[Arrival]:
    """Return a trace; the same seed gives the same one."""
    draw = random.Random(seed)
    now_s, trace = 0.0, []
    for _ in range(shape.num_requests):
        now_s += draw.expovariate(shape.rate_per_s)
        prompt = _length(draw, shape.mean_prompt_tokens, shape.spread, shape.max_prompt_tokens)
        output = _length(draw, shape.mean_output_tokens, shape.spread, shape.max_tokens)
        trace.append(Arrival(now_s, prompt, output, shape.max_tokens))
    return trace


def _length(draw: random.Random, mean: float, spread: float, most: int) -> int:
    return max(1, min(most, round(draw.lognormvariate(math.log(mean) - spread * spread / 2, spread))))
