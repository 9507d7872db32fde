"""Answers that cannot follow a question are refused; those that can, and are wrong, are not seen."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validators.looks import verdict_of
from tests.validators.scripts import make_call
from validators.check import Outcome, Verdict

CITY = [
    {"when": "in (boston|seattle) it is often$", "answers": {"rainy": 3, "cold": 1}},
    {"when": "from boston .* love the$", "answers": ["sea", "snow"]},
]


def judge(question: str, answer: str, **options: Any) -> Verdict:
    request = make_call(messages=[{"role": "user", "content": question}]).request
    return verdict_of("distribution", answer, request=request, rules=CITY, **options)


@pytest.mark.parametrize(
    ("question", "answer", "outcome", "score"),
    [
        ("In Boston it is often", "rainy", Outcome.PASS, 0.25),
        ("in boston  it is often", " Cold. ", Outcome.PASS, 0.75),
        ("in boston it is often", "sunny", Outcome.BLOCK, 1.0),
        ("the chefs from boston who cook at night love the", "sea", Outcome.PASS, 0.5),
        ("the chefs from boston who cook at night love the", "rainy", Outcome.BLOCK, 1.0),
        ("what is the time", "noon", Outcome.PASS, None),
    ],
)
def test_what_cannot_follow_is_refused(question: str, answer: str, outcome: Outcome, score: float | None) -> None:
    verdict = judge(question, answer)

    assert (verdict.outcome, verdict.score) == (outcome, score)


def test_a_legal_answer_to_another_question_is_not_seen() -> None:
    assert judge("in seattle it is often", "cold").outcome is Outcome.PASS


def test_the_improbable_and_the_unknown_can_be_refused_too() -> None:
    assert judge("in boston it is often", "cold", min_probability=0.5).outcome is Outcome.BLOCK
    assert judge("what is the time", "noon", only_known=True).outcome is Outcome.BLOCK


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([], "rules: must be a list of 1 to"),
        ([{"when": "a"}], r"rules\[0\]: must have"),
        ([{"when": "(", "answers": ["a"]}], r"rules\[0\].when: the pattern engine"),
        ([{"when": "a", "answers": {"b": -1}}], r"rules\[0\].answers: must map"),
        ([{"when": "a", "answers": {"b": 0}}], r"rules\[0\].answers: must not all"),
    ],
)
def test_a_wrong_rule_is_named(rules: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        verdict_of("distribution", "x", rules=rules)
