"""The onion's rules that need no other folder (DESIGN section 2 has all six)."""

from __future__ import annotations

import gc
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import FrozenInstanceError, replace

import pytest

from orchestration.core import Call, Delta, Event, Finish, Handler, Start, compose
from tests.orchestration.scripts import Scripted, answer, collect, make_call, passing


async def test_layers_are_entered_outermost_first_and_left_innermost_first() -> None:
    log: list[str] = []

    events = await collect(compose([passing(log, "a"), passing(log, "b")], Scripted(answer()))(make_call()))

    assert events == answer()
    assert log == ["enter a", "enter b", "leave b", "leave a"]


async def test_a_layer_may_answer_alone() -> None:
    async def hit(call: Call, next: Handler, /) -> AsyncGenerator[Event, None]:
        yield Start("cached", "cache")
        yield Finish()

    backend = Scripted(answer())

    events = await collect(compose([hit], backend)(make_call()))

    assert events == [Start("cached", "cache"), Finish()]
    assert backend.models == []


@pytest.mark.parametrize("num_events", range(4))
async def test_a_client_that_leaves_after_any_event_closes_every_layer_at_once(num_events: int) -> None:
    log: list[str] = []
    backend = Scripted([Start("x", "b"), Delta(text="a"), Delta(text="b"), Finish()])
    events = compose([passing(log, "a"), passing(log, "b")], backend)(make_call())

    for _ in range(num_events):
        await anext(events)
    await events.aclose()

    assert backend.num_closed == (1 if num_events else 0)
    assert log[2:] == (["leave b", "leave a"] if num_events else [])


async def test_without_aclosing_the_backend_closes_late_which_is_why_the_rule_exists() -> None:
    async def careless(call: Call, next: Handler, /) -> AsyncGenerator[Event, None]:
        inner = next(call)
        kept.append(inner)
        async for event in inner:
            yield event

    kept: list[AsyncGenerator[Event, None]] = []
    backend = Scripted([Start("x", "b"), Delta(text="a"), Finish()])
    events = compose([careless], backend)(make_call())

    await anext(events)
    await events.aclose()
    closed_at_once = backend.num_closed
    async with aclosing(kept.pop()):
        pass
    gc.collect()

    assert (closed_at_once, backend.num_closed) == (0, 1)


async def test_a_changed_request_is_a_copy_and_the_first_stays_as_it_was() -> None:
    call = make_call(temperature=0.5, x_unknown={"kept": True})

    changed = replace(call, request=call.request.with_fields(temperature=0.0))

    assert call.request.fields["temperature"] == 0.5
    assert changed.request.fields["x_unknown"] == {"kept": True}
    assert changed.request.raw is None
    assert changed.notes is call.notes
    with pytest.raises(FrozenInstanceError):
        call.request.kind = changed.kind  # type: ignore[misc]  # that it is refused is the claim
