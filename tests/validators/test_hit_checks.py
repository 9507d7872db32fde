"""An answer to a similar question is checked against this one, and asked for anew where it does not fit."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from orchestration.core import CacheStatus, Call, Delta, Event, Finish, Start
from tests.validators.scripts import FAILED, Fixed, make_call, rules, run, said
from validators.check import PASSED
from validators.hit_checks import REFUSED_HIT, HitChecks
from validators.policy import Fail, Mode, OnFail, Rule

CITY: dict[str, Any] = {
    "check": "distribution",
    "rules": [{"when": "boston", "answers": ["cold"]}, {"when": "seattle", "answers": ["rainy"]}],
}


class Cache:
    """Answer from an entry, unless the call asks for the model."""

    def __init__(self, entry: str, *, status: CacheStatus = CacheStatus.SEMANTIC) -> None:
        self.entry = entry
        self.status = status
        self.num_fresh = 0

    async def __call__(self, call: Call, /) -> AsyncGenerator[Event, None]:
        is_fresh = call.controls.cache.is_no_cache
        self.num_fresh += is_fresh
        call.notes.cache.status = CacheStatus.MISS if is_fresh else self.status
        call.notes.cache.entry = None if is_fresh else "01ENTRY"
        yield Start("m", "b")
        yield Delta(text="rainy" if is_fresh else self.entry)
        yield Finish()


def asking(city: str) -> Call:
    return make_call(messages=[{"role": "user", "content": f"in {city} it is often"}])


async def test_a_hit_that_cannot_follow_the_question_is_asked_for_anew() -> None:
    cache, call = Cache("cold"), asking("seattle")

    events = await run(HitChecks(rules("output", CITY)), cache, call)

    assert said(events) == "rainy"
    assert sum(isinstance(event, Start) for event in events) == 1
    assert call.notes.extra[REFUSED_HIT] == "01ENTRY"
    assert (call.notes.cache.status, call.notes.cache.entry) == (CacheStatus.MISS, None)
    assert [(note.stage, note.verdict, note.action) for note in call.notes.checks] == [("hit", "block", "blocked")]


async def test_a_hit_that_fits_is_served() -> None:
    cache, call = Cache("cold"), asking("boston")

    assert said(await run(HitChecks(rules("output", CITY)), cache, call)) == "cold"
    assert cache.num_fresh == 0
    assert [(note.stage, note.action) for note in call.notes.checks] == [("hit", "passed")]


@pytest.mark.parametrize("status", [CacheStatus.EXACT, CacheStatus.MISS, CacheStatus.BYPASS])
async def test_what_is_no_similar_questions_answer_passes(status: CacheStatus) -> None:
    cache, call = Cache("cold", status=status), asking("seattle")

    assert said(await run(HitChecks(rules("output", CITY)), cache, call)) == "cold"
    assert call.notes.checks == []


@pytest.mark.parametrize(("fail", "answer"), [(Fail.CLOSED, "rainy"), (Fail.OPEN, "cold")])
async def test_a_check_that_cannot_run_goes_by_its_policy(fail: Fail, answer: str) -> None:
    rule = Rule(check=Fixed(FAILED), on_fail=OnFail.BLOCK, mode=Mode.HOLD, fail=fail)

    assert said(await run(HitChecks([rule]), Cache("cold"), asking("seattle"))) == answer


async def test_rules_that_only_tell_are_left_out() -> None:
    check = Fixed(PASSED)
    rule = Rule(check=check, on_fail=OnFail.FLAG, mode=Mode.OBSERVE, fail=Fail.OPEN)

    await run(HitChecks([rule]), Cache("cold"), asking("seattle"))

    assert check.read == []
