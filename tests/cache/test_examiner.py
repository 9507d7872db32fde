from __future__ import annotations

import pytest

from cache.decide import decide
from cache.examiner import NO_QUESTION, Examiner
from cache.guard import Guard, load_guard
from cache.policies.build import build_policy
from cache.policies.calibrated import CalibratedPolicy, chance_of
from cache.policies.features import Features
from cache.policies.policy import Label
from cache.policies.scorer import load_model
from cache.policies.static import StaticPolicy
from orchestration.core import Candidate

FRANCE, WHATS, GERMANY = "What is the capital of France?", "What's the capital of France?", "capital of Germany?"


@pytest.fixture(scope="module")
def guard() -> Guard:
    return load_guard()


def examined(examiner: Examiner, asked: str, question: str | None, similarity: float = 0.99) -> Candidate:
    return examiner.examine(Candidate("e", similarity), asked=examiner.read(asked), question=question)


def test_the_static_policy_asks_the_guard_and_says_no_odds(guard: Guard) -> None:
    examiner = Examiner(StaticPolicy(0.95), guard)

    assert examined(examiner, FRANCE, WHATS) == Candidate("e", 0.99)
    assert examined(examiner, FRANCE, GERMANY) == Candidate("e", 0.99, veto="entity")


def test_without_a_guard_only_the_cosine_counts() -> None:
    assert examined(Examiner(StaticPolicy(0.95)), FRANCE, GERMANY) == Candidate("e", 0.99)


def test_an_entry_whose_question_was_not_kept_is_not_served_under_the_guard(guard: Guard) -> None:
    assert examined(Examiner(StaticPolicy(0.95), guard), FRANCE, None).veto == NO_QUESTION


def test_the_decision_is_made_again_from_what_is_recorded(guard: Guard) -> None:
    model = load_model()
    examiner = Examiner(CalibratedPolicy(model), guard)
    judged = examined(examiner, FRANCE, WHATS)

    assert judged.inputs is not None
    assert chance_of(model, judged.inputs) == judged.p_correct
    assert decide([judged], bar=0.7).reason == "served"
    assert decide([examined(examiner, FRANCE, GERMANY)], bar=0.7).reason == "vetoed"
    assert decide([examined(examiner, FRANCE, WHATS, 0.71)], bar=0.7).reason == "unlikely"


def test_a_label_changes_the_next_judgement(guard: Guard) -> None:
    examiner = Examiner(CalibratedPolicy(load_model()), guard)
    before = examined(examiner, FRANCE, WHATS)
    for _ in range(5):
        examiner.observe(Label("e", Features(0.99), is_correct=False, source="feedback", at=0.0))

    after = examined(examiner, FRANCE, WHATS)

    assert before.p_correct is not None
    assert after.p_correct is not None
    assert after.p_correct < before.p_correct


def test_a_policy_of_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="static, calibrated"):
        build_policy("guess", threshold=0.95, wrong_to_call_cost=25.0)
