"""A model judges answers after they have gone out, and what it says is in a record of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from itertools import count

import pytest

from orchestration.core import Call, Delta, Event, Finish, Handler, Start, compose
from orchestration.core.errors import BackendError
from tests.validators.scripts import Scripted, answer, make_call, run, said
from validators import judge
from validators.judge import JUDGED_CALL, JudgeChecks, JudgeRule, verdicts
from validators.scope import Scope

RULE = JudgeRule("polite", "big", "Is the answer rude?")


class Model:
    """Judge by a word, remembering what it was asked."""

    def __init__(self, says: str = "NO", *, gate: asyncio.Event | None = None) -> None:
        self.says = says
        self.gate = gate
        self.calls: list[Call] = []

    async def __call__(self, call: Call, /) -> AsyncGenerator[Event, None]:
        self.calls.append(call)
        if self.gate is not None:
            await self.gate.wait()
        if self.says == "fail":
            raise BackendError("down")
        yield Start("big", "b")
        yield Delta(text=self.says)
        yield Finish()


def ids() -> Callable[[], str]:
    numbers = count(1)
    return lambda: f"J{next(numbers)}"


def judged(model: Handler, *rules: JudgeRule) -> JudgeChecks:
    return JudgeChecks(rules or (RULE,), compose([verdicts], model), new_id=ids())


@pytest.mark.parametrize(
    ("says", "verdict", "action"),
    [
        ("NO", "pass", "passed"),
        ("Yes, very.", "block", "flagged"),
        ("**YES**", "block", "flagged"),
        ("Hm", "error", "flagged"),
    ],
)
async def test_a_verdict_is_a_note_of_the_judges_own_call(says: str, verdict: str, action: str) -> None:
    model = Model(says)
    layer, call = judged(model), make_call()

    events = await run(layer, Scripted(answer("you ", "fool")), call)
    await layer.drain()
    await layer.aclose()

    assert said(events) == "you fool"
    assert call.notes.checks == []
    (asking,) = model.calls
    assert (asking.id, asking.tenant, asking.request.model) == ("J1", "judge", "big")
    assert asking.notes.extra[JUDGED_CALL] == {"call": "01", "rule": "polite"}
    assert "hi\n-----\nyou fool" in asking.request.messages[1]["content"]
    assert "Is the answer rude?" in asking.request.messages[0]["content"]
    assert [(note.check, note.stage, note.verdict, note.action) for note in asking.notes.checks] == [
        ("polite", "judge", verdict, action)
    ]


async def test_no_answer_waits_for_the_judge() -> None:
    gate = asyncio.Event()
    model = Model(gate=gate)
    layer = judged(model)

    for _ in range(3):
        assert said(await run(layer, Scripted(answer("fine")))) == "fine"
    gate.set()
    await layer.drain()
    await layer.aclose()

    assert len(model.calls) == 3


async def test_what_is_too_much_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "MAX_WAITING", 2)
    layer = judged(Model(gate=asyncio.Event()))

    for _ in range(6):
        await run(layer, Scripted(answer("fine")))
    await layer.aclose()

    assert layer.num_dropped >= 3


async def test_a_judge_that_fails_takes_nothing_with_it() -> None:
    model = Model("fail")
    layer = judged(model)

    await run(layer, Scripted(answer("fine")))
    await layer.drain()
    model.says = "NO"
    await run(layer, Scripted(answer("fine")))
    await layer.drain()
    await layer.aclose()

    assert len(model.calls[1].notes.checks) == 1


async def test_a_judge_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "DEADLINE_S", 0.01)
    gate = asyncio.Event()
    model = Model(gate=gate)
    layer = judged(model)

    await run(layer, Scripted(answer("fine")))
    await layer.drain()
    gate.set()
    await run(layer, Scripted(answer("fine")))
    await layer.drain()
    await layer.aclose()

    assert [len(call.notes.checks) for call in model.calls] == [0, 1]


def test_a_share_is_picked_by_the_calls_id() -> None:
    rule = replace(RULE, share=0.25)
    calls = [replace(make_call(), id=f"c{number}") for number in range(2000)]

    picked = [rule.picks(call, lambda _: None) for call in calls]

    assert 400 < sum(picked) < 600
    assert picked == [rule.picks(call, lambda _: None) for call in calls]
    assert not replace(RULE, scope=Scope(models=("other",))).picks(calls[0], lambda _: None)
