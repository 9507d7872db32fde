"""The deployment's own scale: logits of the pooled curve, shifted and stretched by the labels seen here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cache.policies.scorer import sigmoid

_PRIOR_VARIANCE = (4.0, 0.25)  # of the shift and of the stretch: about 20 labels outweigh it
_NUM_STEPS = 25
_CLOSE_ENOUGH = 1e-7


@dataclass(frozen=True, slots=True)
class Scale:
    """logit P = shift + stretch * pooled logit."""

    shift: float = 0.0
    stretch: float = 1.0

    def of(self, logit: float) -> float:
        """Bring a pooled logit to this deployment's scale."""
        return self.shift + self.stretch * logit


def fit_scale(labels: Iterable[tuple[float, bool, float]]) -> Scale:
    """Fit (pooled logit, was it right, weight) by penalised likelihood around the identity (Platt scaling, 1999).

    The stretch stays at or above 0.05: a deployment may find the scorer useless, never turned round.
    """
    rows = list(labels)
    if not rows:
        return Scale()
    mean_weight = sum(weight for _, _, weight in rows) / len(rows)
    shift, stretch = 0.0, 1.0
    for _ in range(_NUM_STEPS):
        g0, g1 = -shift / _PRIOR_VARIANCE[0], -(stretch - 1.0) / _PRIOR_VARIANCE[1]
        h00, h01, h11 = 1.0 / _PRIOR_VARIANCE[0], 0.0, 1.0 / _PRIOR_VARIANCE[1]
        for logit, is_correct, weight in rows:
            p = sigmoid(shift + stretch * logit)
            counted = weight / mean_weight
            error, spread = counted * (is_correct - p), counted * p * (1.0 - p)
            g0, g1 = g0 + error, g1 + error * logit
            h00, h01, h11 = h00 + spread, h01 + spread * logit, h11 + spread * logit * logit
        determinant = h00 * h11 - h01 * h01
        d0, d1 = (h11 * g0 - h01 * g1) / determinant, (h00 * g1 - h01 * g0) / determinant
        shift, stretch = shift + max(-1.0, min(1.0, d0)), max(0.05, stretch + max(-0.5, min(0.5, d1)))
        if abs(d0) + abs(d1) < _CLOSE_ENOUGH:
            break
    return Scale(shift, stretch)
