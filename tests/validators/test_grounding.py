"""An answer's sentences stand in the context that the request brought, or count against it."""

from __future__ import annotations

from typing import Any

import pytest

from orchestration.core import Request
from tests.validators.looks import verdict_of
from tests.validators.scripts import make_call
from validators.check import Outcome
from validators.grounding import Grounding, support_of

CONTEXT = (
    "The Lamport bridge was built in 1934 by Ada Corwin. It is 1,250 metres long and carries 40,000 cars a day. "
    "Repairs in 2011 cost 12.5 million euros."
)


def asking(role: str = "tool", **fields: Any) -> Request:
    return make_call(
        messages=[{"role": role, "content": CONTEXT}, {"role": "user", "content": "Tell me."}], **fields
    ).request


@pytest.mark.parametrize(
    "answer",
    [
        "The Lamport bridge was built in 1934.",
        "It carries 40,000 cars every day and is 1250 metres long.",
        "Ada Corwin built the bridge. Repairs cost 12.5 million euros in 2011.",
        "Yes.",
    ],
)
def test_what_stands_in_the_context_passes(answer: str) -> None:
    verdict = verdict_of("grounding", answer, request=asking())

    assert (verdict.outcome, verdict.score) == (Outcome.PASS, 1.0)


@pytest.mark.parametrize(
    "answer",
    [
        "The Lamport bridge was built in 1943.",
        "The bridge was built by Grace Hopper.",
        "It was painted green after a storm destroyed the northern tower.",
        "It carries 400,000 cars a day.",
    ],
)
def test_what_is_made_up_is_refused(answer: str) -> None:
    verdict = verdict_of("grounding", answer, request=asking())

    assert verdict.outcome is Outcome.BLOCK
    assert verdict.reason == "1 of its 1 sentences do not stand in the context"


def test_the_score_is_the_share_of_supported_sentences() -> None:
    answer = "The Lamport bridge was built in 1934. It was painted green by volunteers."

    assert support_of(answer, CONTEXT).score == 0.5
    assert verdict_of("grounding", answer, request=asking(), threshold=0.5).outcome is Outcome.PASS


def test_only_requests_with_context_are_judged() -> None:
    check = Grounding()

    assert check.applies(asking())
    assert check.applies(make_call(documents=[{"text": CONTEXT}]).request)
    assert not check.applies(asking(role="user"))
    assert Grounding(roles=["user"]).applies(asking(role="user"))
