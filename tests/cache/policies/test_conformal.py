from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.policies.conformal import Outcome, conformal_bar, num_labels_needed

OUTCOMES = st.lists(
    st.builds(Outcome, st.floats(0, 1), st.booleans(), st.sampled_from([1.0, 20.0])), min_size=1, max_size=80
)


@pytest.mark.parametrize(("budget", "needed"), [(0.05, 19), (0.02, 49), (0.01, 99)])
def test_a_budget_needs_as_many_labels_as_one_over_it(budget: float, needed: int) -> None:
    right = Outcome(0.9, is_correct=True)

    assert num_labels_needed(budget) == needed
    assert conformal_bar([right] * needed, budget=budget) == -math.inf
    assert conformal_bar([right] * (needed - 1), budget=budget) == math.inf


@given(OUTCOMES, st.floats(0.01, 0.5))
def test_the_bar_keeps_the_bound_and_a_lower_one_would_not(outcomes: list[Outcome], budget: float) -> None:
    bar = conformal_bar(outcomes, budget=budget)
    total = sum(outcome.weight for outcome in outcomes)
    effective = total**2 / sum(outcome.weight**2 for outcome in outcomes)

    def bound(at: float) -> float:
        wrong = sum(outcome.weight for outcome in outcomes if outcome.score >= at and not outcome.is_correct)
        return effective / (effective + 1) * wrong / total + 1 / (effective + 1)

    if math.isfinite(bar):
        assert bound(bar) <= budget + 1e-9
    lower = [outcome.score for outcome in outcomes if outcome.score < bar]
    assert not lower or bound(max(lower)) > budget - 1e-9
    assert bar > -math.inf or bound(bar) <= budget + 1e-9


def test_one_score_is_served_whole_or_not_at_all() -> None:
    tied = [Outcome(0.9, is_correct=number >= 10) for number in range(100)]

    assert conformal_bar(tied, budget=0.05) == math.inf


def test_the_next_requests_stay_within_the_budget_on_average() -> None:
    draw = random.Random(5)

    def outcome() -> Outcome:
        score = draw.random()
        return Outcome(score, is_correct=draw.random() < 0.6 + 0.4 * score)

    realised = []
    for _ in range(300):
        bar = conformal_bar([outcome() for _ in range(200)], budget=0.05)
        later = [outcome() for _ in range(50)]
        realised.append(sum(one.score >= bar and not one.is_correct for one in later) / len(later))

    assert sum(realised) / len(realised) <= 0.055


def test_nothing_learned_is_no_bar() -> None:
    assert conformal_bar([], budget=0.5) == math.inf
