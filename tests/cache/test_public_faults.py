"""Wrong hits that other semantic caches were reported for, asked of ours with its own encoder at the shipped bars."""

from __future__ import annotations

import pytest

from cache.decide import Decision, decide
from cache.encoder import Encoder
from cache.examiner import Examiner
from cache.guard import Guard, load_guard
from cache.policies.build import build_policy
from orchestration.core import Candidate

STORED_AND_ASKED = [
    ("What is the function of money?", "can you explain what function of TV is ?"),
    ("hello world", "bye"),
    ("Hello world", "What is 1+1?"),
    ("What is 1+1?", "Tell me one joke"),
    ("What is 17×23?", "What is 17×24?"),
    ("How do I turn on dark mode?", "How do I turn off dark mode?"),
    ("Is port 6379 open by default?", "Is port 6379 closed by default?"),
    ("What is the capital of France?", "What is the capital of Germany?"),
    ("What is the capital of France?", "What is the capital of New France?"),
    ("How do I reset my password?", "How do I reset my colleague's password?"),
    ("Convert 100 USD to EUR", "Convert 100 EUR to USD"),
    ("法国的首都是哪里", "德国的首都是哪里"),
]


@pytest.fixture(scope="module")
def guard() -> Guard:
    return load_guard()


def decided(encoder: Encoder, guard: Guard, policy: str, stored: str, asked: str) -> Decision:
    one, other = encoder.encode(encoder.tokenize([stored, asked]))
    examiner = Examiner(build_policy(policy, threshold=0.95, wrong_to_call_cost=25.0), guard)
    candidate = Candidate("entry", float(one @ other))
    judged = examiner.examine(candidate, asked=examiner.read(asked), question=stored)
    return decide([judged], bar=examiner.policy.floor)


@pytest.mark.parametrize("policy", ["static", "calibrated"])
@pytest.mark.parametrize(("stored", "asked"), STORED_AND_ASKED)
def test_no_reported_wrong_hit_is_one_here(
    encoder: Encoder, guard: Guard, policy: str, stored: str, asked: str
) -> None:
    assert decided(encoder, guard, policy, stored, asked).entry is None


@pytest.mark.parametrize("policy", ["static", "calibrated"])
def test_the_same_question_in_other_words_is_served(encoder: Encoder, guard: Guard, policy: str) -> None:
    stored, asked = "What is the capital of France?", "What's the capital of France?"

    assert decided(encoder, guard, policy, stored, asked).entry == "entry"
