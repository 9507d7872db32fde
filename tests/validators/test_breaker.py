"""A check that raises, hangs or fails again and again never takes a call with it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from orchestration.core.errors import CheckUnavailable
from tests.validators.scripts import FAILED, Fixed, Scripted, answer, make_call, run, run_to_error, said
from validators.breaker import Bounds, Guarded
from validators.check import PASSED, Context, Cost, Outcome, Stage, Verdict
from validators.input_checks import InputChecks
from validators.output_checks import OutputChecks
from validators.policy import Fail, Mode, OnFail, Rule

CONTEXT = Context(Stage.OUTPUT, "choices[0].text")


class Raising(Fixed):
    async def check(self, text: str, context: Context) -> Verdict:
        raise ValueError(f"I cannot read {text}")


class Hanging(Fixed):
    cost = Cost.WORKER

    async def check(self, text: str, context: Context) -> Verdict:
        await asyncio.Event().wait()
        return PASSED


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def rule(check: Any, fail: Fail) -> Rule:
    guarded = Guarded(check, bounds=Bounds(deadline_s=0.01))
    return Rule(check=guarded, on_fail=OnFail.BLOCK, mode=Mode.HOLD, fail=fail)


@pytest.mark.parametrize("check", [Raising(), Hanging()])
async def test_a_check_that_raises_or_hangs_is_answered_by_the_policy(check: Any) -> None:
    core, call = Scripted(answer("my secret")), make_call()

    events = await run(OutputChecks([rule(check, Fail.OPEN)]), core, call)
    _, error = await run_to_error(OutputChecks([rule(check, Fail.CLOSED)]), Scripted(answer("x")))
    _, refused = await run_to_error(InputChecks([rule(check, Fail.CLOSED)]), Scripted())

    assert said(events) == "my secret"
    assert isinstance(error, CheckUnavailable)
    assert isinstance(refused, CheckUnavailable)
    assert (call.notes.checks[0].verdict, call.notes.checks[0].action) == ("error", "failed_open")
    assert call.notes.degraded == ["check fixed (output) did not run"]


async def test_the_reason_names_what_happened_and_not_the_text() -> None:
    raised = await Guarded(Raising()).check("secret", CONTEXT)
    late = await Guarded(Hanging(), bounds=Bounds(deadline_s=0.01)).check("secret", CONTEXT)

    assert raised == Verdict(Outcome.ERROR, reason="raised: ValueError")
    assert late == Verdict(Outcome.ERROR, reason="timeout: it took longer than 0.01 s")


async def test_the_breaker_opens_after_failures_in_a_row_and_closes_when_a_trial_succeeds() -> None:
    inner, clock = Fixed(FAILED), Clock()
    check = Guarded(inner, bounds=Bounds(opens_after=3, open_s=10.0), clock=clock)

    for _ in range(3):
        await check.check("x", CONTEXT)
    opened = await check.check("x", CONTEXT)
    assert str(opened.reason).startswith("breaker_open")
    assert len(inner.read) == 3

    clock.now_s = 10.0
    assert (await check.check("x", CONTEXT)).reason == "down"
    assert str((await check.check("x", CONTEXT)).reason).startswith("breaker_open")
    assert len(inner.read) == 4

    clock.now_s, inner.verdict = 20.0, PASSED
    assert await check.check("x", CONTEXT) == PASSED
    assert await check.check("x", CONTEXT) == PASSED
    assert len(inner.read) == 6


async def test_while_one_call_tries_again_the_others_do_not() -> None:
    inner, clock = Hanging(), Clock()
    check = Guarded(inner, bounds=Bounds(deadline_s=0.05, opens_after=1, open_s=1.0), clock=clock)
    await check.check("x", CONTEXT)
    clock.now_s = 1.0

    reasons = [str(verdict.reason) for verdict in await asyncio.gather(*(check.check("x", CONTEXT) for _ in range(5)))]

    assert sorted(reason.split(":")[0] for reason in reasons) == ["breaker_open"] * 4 + ["timeout"]


async def test_what_a_request_brings_opens_it_for_nobody() -> None:
    inner = Fixed(replace(FAILED, is_requests_fault=True))
    check = Guarded(inner, bounds=Bounds(opens_after=2))

    for _ in range(5):
        assert (await check.check("x", CONTEXT)).reason == "down"
    assert len(inner.read) == 5


async def test_single_failures_do_not_open_it() -> None:
    inner = Fixed(FAILED)
    check = Guarded(inner, bounds=Bounds(opens_after=2))

    for verdict in [FAILED, PASSED] * 5:
        inner.verdict = verdict
        assert await check.check("x", CONTEXT) == verdict
