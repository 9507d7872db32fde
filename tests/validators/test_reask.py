"""A refused answer is asked for again, at most as often as the rule says, and everything it cost is counted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from orchestration.core import Call, Delta, Event, Finish, Kind, Start, Usage
from orchestration.core.errors import BackendError, Blocked
from tests.validators.scripts import answer, make_call, output, run, run_to_error, said

JSON = {"check": "json", "on_fail": "reask"}


class InTurn:
    """Give one script after the other, with a usage and a cost each, as the router does."""

    def __init__(self, *scripts: Sequence[Event | Exception]) -> None:
        self.scripts = list(scripts)
        self.calls: list[Call] = []

    async def __call__(self, call: Call, /) -> AsyncGenerator[Event, None]:
        self.calls.append(call)
        for event in self.scripts[len(self.calls) - 1]:
            if isinstance(event, Exception):
                raise event
            if isinstance(event, Finish):
                call.notes.cost_usd = 0.25
                yield Finish(usage=Usage(10, 5), raw=b"end", dialect="d")
            else:
                yield event


async def test_a_refused_answer_is_asked_for_again_with_the_reason() -> None:
    core, call = InTurn(answer("no JSON"), answer('{"a": ', "1}")), make_call()

    events = await run(output(JSON), core, call)

    assert said(events) == '{"a": 1}'
    assert sum(isinstance(event, Start) for event in events) == 1
    first, second = (one.request.messages for one in core.calls)
    assert second[: len(first)] == first
    assert second[-2] == {"role": "assistant", "content": "no JSON"}
    assert "it is not JSON" in second[-1]["content"]
    assert call.request.messages == first


async def test_usage_and_cost_of_all_answers_are_counted() -> None:
    call = make_call()

    events = await run(output({**JSON, "reasks": 2}), InTurn(*[answer("no")] * 2, answer("1")), call)

    finish = events[-1]
    assert isinstance(finish, Finish)
    assert (finish.usage, finish.raw) == (Usage(30, 15), None)
    assert call.notes.cost_usd == 0.75


@pytest.mark.parametrize("reasks", [1, 2, 3])
async def test_after_the_last_time_it_is_blocked(reasks: int) -> None:
    core, call = InTurn(*[answer("no")] * 5), make_call()

    seen, error = await run_to_error(output({**JSON, "reasks": reasks}), core, call)

    assert seen == []
    assert isinstance(error, Blocked)
    assert len(core.calls) == reasks + 1
    assert call.notes.cost_usd == 0.25 * (reasks + 1)
    assert [(note.verdict, note.action) for note in call.notes.checks] == [("block", "blocked")]


async def test_the_record_says_that_it_was_asked_again() -> None:
    call = make_call()

    await run(output(JSON), InTurn(answer("no"), answer("1")), call)

    assert [(note.verdict, note.action) for note in call.notes.checks] == [("block", "reasked")]


async def test_an_answer_that_passes_is_not_touched() -> None:
    script: list[Event | Exception] = [
        Start("m", "b"),
        Delta(text="1", raw=b"1", dialect="d"),
        Finish(raw=b"end", dialect="d", usage=Usage(10, 5)),
    ]

    assert await run(output(JSON), InTurn(script)) == script


async def test_what_is_no_conversation_is_blocked_at_once() -> None:
    core = InTurn(answer("no"))

    _, error = await run_to_error(output(JSON), core, make_call(Kind.COMPLETION, prompt="p"))

    assert isinstance(error, Blocked)


async def test_another_rules_block_stands() -> None:
    ban: dict[str, Any] = {"check": "banned_words", "words": ["no"], "on_fail": "block"}
    core = InTurn(answer("no"), answer("1"))

    _, error = await run_to_error(output(ban, JSON), core)

    assert isinstance(error, Blocked)
    assert len(core.calls) == 1


async def test_a_backend_that_fails_the_second_time_is_an_error_with_a_status() -> None:
    seen, error = await run_to_error(output(JSON), InTurn(answer("no"), [BackendError("down")]))

    assert seen == []
    assert isinstance(error, BackendError)


async def test_a_word_can_be_the_reason_too() -> None:
    core = InTurn(answer("say for", "bidden things"), answer("say other things"))

    events = await run(output({"check": "banned_words", "words": ["forbidden"], "on_fail": "reask"}), core)

    assert said(events) == "say other things"
