"""One entry's own record, and what it says about the entry beside the curve for all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from cache.policies.scorer import sigmoid

MAX_OBSERVATIONS = 32
_NUM_STEPS = 30
_CLOSE_ENOUGH = 1e-6


@dataclass(frozen=True, slots=True)
class EntryRecord:
    """The latest labels of one entry, (pooled logit, was it right), the newest last, at most 32."""

    observations: tuple[tuple[float, bool], ...] = ()

    def with_label(self, logit: float, *, is_correct: bool) -> Self:
        """Return the record with one label more."""
        return replace(self, observations=(*self.observations, (logit, is_correct))[-MAX_OBSERVATIONS:])

    def offset(self, *, variance: float) -> tuple[float, float]:
        """Return mean and variance of u in logit P = pooled logit + u, u ~ N(0, `variance`).

        The Laplace approximation at the most likely u, by Newton's method on a concave function. Without labels it
        is the prior: an entry begins as entries are.
        """
        if not self.observations or variance <= 0.0:
            return 0.0, max(0.0, variance)
        offset = 0.0
        curvature = 1.0 / variance
        for _ in range(_NUM_STEPS):
            chances = [sigmoid(logit + offset) for logit, _ in self.observations]
            slope = sum(right - p for (_, right), p in zip(self.observations, chances, strict=True)) - offset / variance
            curvature = sum(p * (1.0 - p) for p in chances) + 1.0 / variance
            step = slope / curvature
            offset += max(-2.0, min(2.0, step))
            if abs(step) < _CLOSE_ENOUGH:
                break
        return offset, 1.0 / curvature
