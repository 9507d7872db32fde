from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.policies.calibrated import CalibratedPolicy
from cache.policies.conformal import UNREACHABLE
from cache.policies.features import Features
from cache.policies.policy import Judgement, Label
from cache.policies.scorer import load_model
from cache.policies.verified import MIN_LABELS, Heard, VerifiedPolicy, has_won

MODEL = load_model()
GREY = Features(0.85, least_shared=0.6, one_sided=1.1)
SCORES = st.lists(st.builds(Heard, st.floats(-3, 3), st.floats(0, 1), st.booleans()), max_size=40)


def a_policy(*, sees: float, num_labels: int, seed: int = 1) -> VerifiedPolicy:
    """Teach a policy whose verifier is right with chance `sees`, on candidates that are right half of the time."""
    draw = random.Random(seed)
    policy = VerifiedPolicy(CalibratedPolicy(MODEL, wrong_to_call_cost=10.0), "fake-1")
    for number in range(num_labels):
        is_correct = draw.random() < 0.5
        score = 0.5 + (0.4 if is_correct == (draw.random() < sees) else -0.4) + draw.random() / 100
        label = Label(str(number), GREY, is_correct, "judge", float(number))
        policy = policy.observe_score(label, score)
    return policy


def test_a_verifier_is_not_heard_before_a_hundred_labels() -> None:
    assert a_policy(sees=1.0, num_labels=MIN_LABELS - 1).bar == UNREACHABLE
    assert a_policy(sees=1.0, num_labels=MIN_LABELS).bar < 1.0


def test_a_verifier_that_knows_no_more_than_the_scorer_is_not_heard() -> None:
    assert a_policy(sees=0.5, num_labels=300).bar == UNREACHABLE


def test_a_verifier_that_has_won_serves_what_the_scorer_would_not() -> None:
    policy = a_policy(sees=1.0, num_labels=150)
    judged = Judgement(0.8, 0.9, (1.0,))

    assert policy.wants_score(judged)
    assert policy.weigh(judged, 0.95).may_serve
    assert not policy.weigh(judged, 0.05).may_serve
    assert policy.weigh(judged, 0.95).inputs == (1.0, 0.95, policy.bar)


@pytest.mark.parametrize("p_correct", [0.2, 0.95])
def test_outside_the_grey_zone_it_is_not_asked(p_correct: float) -> None:
    policy = a_policy(sees=1.0, num_labels=150)
    judged = Judgement(p_correct, 0.9, ())

    assert not policy.wants_score(judged)
    assert policy.weigh(judged, 0.99) == judged


@given(SCORES)
def test_who_ranks_alike_has_not_won(heard: list[Heard]) -> None:
    assert not has_won([Heard(one.score, one.score, one.is_correct) for one in heard])
