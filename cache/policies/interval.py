"""An interval for a share of which some were counted."""

from __future__ import annotations

import math
from collections.abc import Callable

_NUM_STEPS = 60
_LEAST = 1e-17


def exact_interval(num_hit: int, num_all: int, *, level: float = 0.95) -> tuple[float, float]:
    """Return an interval that covers the true share with a probability of at least `level`, whatever the share is.

    Clopper and Pearson (1934): the shares that a two-sided binomial test would not refuse. Nothing counted: (0, 1).
    """
    if not 0 <= num_hit <= num_all:
        raise ValueError(f"{num_hit} of {num_all} is no count")
    tail = (1.0 - level) / 2.0
    low = _solve(lambda share: 1.0 - _at_most(num_hit - 1, num_all, share), tail) if num_hit else 0.0
    high = _solve(lambda share: 1.0 - _at_most(num_hit, num_all, share), 1.0 - tail) if num_hit < num_all else 1.0
    return low, high


def _at_most(num_hit: int, num_all: int, share: float) -> float:
    """Return P(X <= num_hit) for X ~ Binomial(num_all, share), 0 <= num_hit < num_all and 0 < share < 1.

    The terms are added from the largest on, each made from the one before, until they change nothing.
    """
    if num_hit > num_all * share:  # what is above is the smaller part, and seen from there below
        return 1.0 - _at_most(num_all - num_hit - 1, num_all, 1.0 - share)
    miss_odds = (1.0 - share) / share
    choices = math.lgamma(num_all + 1) - math.lgamma(num_hit + 1) - math.lgamma(num_all - num_hit + 1)
    term = math.exp(choices + num_hit * math.log(share) + (num_all - num_hit) * math.log1p(-share))
    total = 0.0
    for k in range(num_hit, -1, -1):
        total += term
        term *= k / (num_all - k + 1) * miss_odds
        if term <= total * _LEAST:
            break
    return min(1.0, total)


def _solve(grows: Callable[[float], float], wanted: float) -> float:
    """Find where a function that grows on (0, 1) takes a value, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(_NUM_STEPS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if grows(middle) < wanted else (low, middle)
    return (low + high) / 2.0
