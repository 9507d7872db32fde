"""A bar with a bound: the smallest one whose risk on recent labels stays within the budget.

Conformal risk control (Angelopoulos et al., 2024, arXiv 2208.02814): for a loss in [0, 1] that falls as the bar rises,
the smallest bar with n / (n + 1) * risk + 1 / (n + 1) <= budget keeps the expected loss of the next, exchangeable
request within the budget. The loss is 1 where a wrong answer is served, so the risk is wrong answers per request.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

UNREACHABLE = math.inf


@dataclass(frozen=True, slots=True)
class Outcome:
    """One labelled look-up: the score that its best candidate had, whether it was right, and what it stands for."""

    score: float
    is_correct: bool
    weight: float = 1.0


def num_labels_needed(budget: float) -> int:
    """Return how many labels a budget needs before any bar can hold it: 19, 49, 99 for 5, 2, 1 %."""
    return math.ceil(1.0 / budget - 1.0 - 1e-9)


def conformal_bar(outcomes: Iterable[Outcome], *, budget: float) -> float:
    """Return the smallest bar that keeps the bound: infinity where none does, minus infinity where any would.

    Weighted outcomes count for as many requests as they stand for; n is then the effective sample size (Kish).
    """
    ranked = sorted(outcomes, key=lambda outcome: -outcome.score)
    total = sum(outcome.weight for outcome in ranked)
    if total <= 0.0:
        return UNREACHABLE
    effective = total**2 / sum(outcome.weight**2 for outcome in ranked)
    allowed = (budget * (effective + 1.0) - 1.0) / effective * total
    if allowed < 0.0:
        return UNREACHABLE
    bar, wrong = UNREACHABLE, 0.0
    for score, tied in groupby(ranked, key=lambda outcome: outcome.score):
        wrong += sum(outcome.weight for outcome in tied if not outcome.is_correct)
        if wrong > allowed:
            return bar  # the score of the last ones that may still be served
        bar = score
    return -math.inf
