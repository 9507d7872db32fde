"""vCache's rule (Schroeder et al., arXiv 2502.03771, 2025), as a baseline behind the same interface.

Written from the paper's description. The variance of a separable entry's threshold comes from a proper prior instead
of the simulated table that the authors ship (which is not free to use); nothing is served before four labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Self

from cache.policies.features import Features
from cache.policies.policy import Judgement, Label
from cache.policies.scorer import sigmoid

_SEEDS = ((0.0, False), (1.0, True))
_MIN_OBSERVATIONS = 6
_CONFIDENCES = tuple(number / 50.0 for number in range(1, 50))
_PRIOR_PRECISION = 1e-2
_NUM_STEPS = 50


@dataclass(frozen=True, slots=True)
class Threshold:
    """One entry's fitted curve sigmoid(steepness * (s - middle)), and the variance of its middle."""

    middle: float
    steepness: float
    variance: float

    def explore_share(self, similarity: float, *, budget: float) -> float:
        """Return how often such a look-up has to be asked anew for at most `budget` wrong answers per request."""
        best = 1.0
        for confidence in _CONFIDENCES:
            bound = min(1.0, max(0.0, self.middle + NormalDist().inv_cdf(1.0 - confidence) * math.sqrt(self.variance)))
            right = (1.0 - confidence) * sigmoid(self.steepness * (similarity - bound))
            best = min(best, 1.0 - budget / (1.0 - right) if right < 1.0 else 0.0)
        return max(0.0, best)


@dataclass(frozen=True, slots=True)
class VCachePolicy:
    """Serve with the chance that one entry's own labels allow. `draw` gives the random number in [0, 1) of a judgement.

    `p_correct` of a judgement is the draw, `p_required` the share of such look-ups to explore; who uses it stores a
    question as an entry of its own only where the neighbour's answer was wrong, as the authors do.
    """

    budget: float
    draw: Callable[[], float]
    floor: float = -1.0
    observations: Mapping[str, tuple[tuple[float, bool], ...]] = field(default_factory=dict)

    name = "vcache"
    version = "vcache-1"

    def judge(self, entry: str, features: Features) -> Judgement:
        """Explore until four labels are there, then by the bound."""
        observed = (*_SEEDS, *self.observations.get(entry, ()))
        if len(observed) < _MIN_OBSERVATIONS:
            return Judgement(0.0, 1.0, (features.similarity, float(len(observed))))
        share = fit_threshold(observed).explore_share(features.similarity, budget=self.budget)
        drawn = self.draw()
        # Served where the draw is above the share; a share of 1 never serves.
        return Judgement(drawn if drawn > share else 0.0, share, (features.similarity, share, drawn))

    def observe(self, label: Label) -> Self:
        """Give a label to its entry."""
        rows = (*self.observations.get(label.entry, ()), (label.features.similarity, label.is_correct))
        return replace(self, observations={**self.observations, label.entry: rows})


def fit_threshold(observed: tuple[tuple[float, bool], ...]) -> Threshold:
    """Fit the logistic curve of one entry by Newton's method, with a weak normal prior that keeps it finite."""
    w0 = w1 = 0.0
    h00 = h01 = h11 = 1.0
    for _ in range(_NUM_STEPS):
        g0, g1 = -_PRIOR_PRECISION * w0, -_PRIOR_PRECISION * w1
        h00, h01, h11 = _PRIOR_PRECISION, 0.0, _PRIOR_PRECISION
        for similarity, is_correct in observed:
            p = sigmoid(w0 + w1 * similarity)
            error, spread = is_correct - p, p * (1.0 - p)
            g0, g1 = g0 + error, g1 + error * similarity
            h00, h01, h11 = h00 + spread, h01 + spread * similarity, h11 + spread * similarity * similarity
        determinant = h00 * h11 - h01 * h01
        d0, d1 = (h11 * g0 - h01 * g1) / determinant, (h00 * g1 - h01 * g0) / determinant
        w0, w1 = w0 + d0, w1 + d1
        if abs(d0) + abs(d1) < 1e-8:
            break
    steepness = max(w1, 1e-6)
    middle = min(1.0, max(0.0, -w0 / steepness))
    gradient = (-1.0 / steepness, w0 / steepness**2)
    determinant = h00 * h11 - h01 * h01
    variance = (h11 * gradient[0] ** 2 - 2.0 * h01 * gradient[0] * gradient[1] + h00 * gradient[1] ** 2) / determinant
    return Threshold(middle, steepness, max(0.0, variance))
