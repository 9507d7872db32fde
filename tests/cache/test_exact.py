from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.exact import ExactCache
from cache.memory_store import MemoryStore
from cache.redis_store import RedisStore
from orchestration.core import (
    CacheControl,
    CacheStatus,
    Call,
    CheckNote,
    Delta,
    Event,
    Finish,
    Kind,
    Part,
    Start,
    Usage,
    compose,
)
from orchestration.core.errors import BackendUnavailable, CacheMissed
from tests.cache.scripted import PARIS, PATIENT, Clock, Scripted, a_call, an_exact_cache, answer, text_of


async def test_the_same_request_again_is_answered_from_the_cache() -> None:
    layer, core, clock = an_exact_cache(), Scripted(), Clock()
    first, second = a_call("c1"), a_call("c2")

    missed = await answer(layer, core, first)
    hit = await answer(layer, core, second)

    assert missed == list(PARIS)
    assert hit == [Start("real-model", "echo"), Delta(text="The capital is Paris."), PARIS[-1]]
    assert len(core.calls) == 1
    assert (first.notes.cache.status, first.notes.cache.was_stored) == (CacheStatus.MISS, True)
    note = second.notes.cache
    assert (note.status, note.reason, note.is_collapsed) == (CacheStatus.EXACT, None, False)
    assert (note.entry_call, note.entry_created_at, note.ttl_s) == ("c1", clock.now, 3600.0)
    assert note.key == first.notes.cache.key
    assert note.entry
    assert (second.notes.model, second.notes.backend, second.notes.cost_usd) == ("real-model", "echo", 0.0)


async def test_a_hit_keeps_reasoning_tool_calls_logprobs_and_usage() -> None:
    events = (
        Start("m", "b"),
        Delta(part=Part.REASONING, text="think " * 30),
        Delta(text="a", logprobs=[{"token": "a", "logprob": -0.5}]),
        Delta(part=Part.TOOL_CALL, data={"index": 0, "id": "x", "function": {"name": "f", "arguments": "{}"}}),
        Finish({0: "tool_calls"}, Usage(9, 8, 7, 6)),
    )
    layer, core = an_exact_cache(), Scripted(events)
    await answer(layer, core, a_call())

    hit = await answer(layer, core, a_call(stream=True))

    assert len(core.calls) == 1
    assert hit[-3:] == list(events[-3:])
    assert text_of([e for e in hit if isinstance(e, Delta) and e.part is Part.REASONING]) == "think " * 30


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True), (True, True)])
async def test_streamed_and_whole_calls_share_one_entry(first: bool, second: bool) -> None:
    layer, core = an_exact_cache(), Scripted()
    options = {"include_usage": True}

    await answer(layer, core, a_call(stream=first, stream_options=options))
    hit = await answer(layer, core, a_call(stream=second))

    assert text_of(hit) == "The capital is Paris."
    assert len(core.calls) == 1


async def test_a_streamed_hit_is_a_stream_of_several_pieces_whatever_was_stored() -> None:
    layer, core = an_exact_cache(), Scripted((Start("m", "b"), Delta(text="one long word " * 50), Finish()))
    await answer(layer, core, a_call(stream=False))

    hit = await answer(layer, core, a_call(stream=True))

    assert len([event for event in hit if isinstance(event, Delta)]) > 10
    assert text_of(hit) == "one long word " * 50


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(alphabet=st.characters(), max_size=80), max_size=8), st.booleans())
def test_what_is_replayed_says_what_was_answered(texts: list[str], is_streamed: bool) -> None:
    async def run() -> None:
        layer, core = an_exact_cache(), Scripted((Start("m", "b"), *[Delta(text=text) for text in texts], Finish()))
        first = await answer(layer, core, a_call())
        second = await answer(layer, core, a_call(stream=is_streamed))

        assert text_of(second) == text_of(first) == "".join(texts)
        assert len(core.calls) == (1 if any(texts) else 2)

    asyncio.run(run())


@pytest.mark.parametrize(
    "changed",
    [
        {"tenant": "t2"},
        {"namespace": "n"},
        {"model": "other"},
        {"kind": Kind.COMPLETION},
        {"temperature": 0.7},
        {"temperature": 0},
        {"max_tokens": 16},
        {"seed": 1},
        {"n": 2},
        {"num_ctx": 8192},
        {
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": "What is the capital of France?"},
            ]
        },
    ],
    ids=lambda changed: next(iter(changed)),
)
async def test_another_call_never_gets_this_answer(changed: dict[str, Any]) -> None:
    layer, core = an_exact_cache(), Scripted((*PARIS[:-1], Delta(1, text="x"), Finish({0: "stop", 1: "stop"})))
    await answer(layer, core, a_call())

    other = a_call(**changed)
    await answer(layer, core, other)

    assert other.notes.cache.status is CacheStatus.MISS
    assert len(core.calls) == 2


@pytest.mark.parametrize("changed", [{"route": "r2"}, {"policy": "p2"}])
async def test_another_route_or_policy_never_gets_this_answer(changed: dict[str, Any]) -> None:
    store, core = MemoryStore(), Scripted()
    await answer(an_exact_cache(store), core, a_call())

    await answer(an_exact_cache(store, **changed), core, a_call())

    assert len(core.calls) == 2


async def test_two_tenants_with_one_body_never_share_nor_see_each_others_key() -> None:
    layer, core = an_exact_cache(), Scripted()
    one, other = a_call(tenant="team-a"), a_call(tenant="team-b")

    await asyncio.gather(answer(layer, core, one), answer(layer, core, other))

    assert one.notes.cache.key != other.notes.cache.key
    assert [call.tenant for call in core.calls] == ["team-a", "team-b"]


async def test_an_answer_bought_through_one_dialect_serves_another() -> None:
    raw = Delta(text="Hi", raw=b'data: {"id": "x"}\n\n', dialect="openai")
    layer, core = an_exact_cache(), Scripted((Start("m", "b"), raw, Finish(raw=b"data: [DONE]", dialect="openai")))
    first = await answer(layer, core, a_call(dialect="openai"))

    hit = await answer(layer, core, a_call(dialect="anthropic"))

    assert first[1] == raw
    assert hit == [Start("m", "b"), Delta(text="Hi"), Finish()]


async def test_embeddings_of_a_list_are_kept_and_come_to_an_end() -> None:
    payload = Delta(part=Part.PAYLOAD, data=[{"index": i, "embedding": [0.1, float(i)]} for i in range(3)])
    clock = Clock()
    layer, core = an_exact_cache(clock=clock, ttl_s=60.0), Scripted((Start("m", "b"), payload, Finish({})))
    ask: dict[str, Any] = {"kind": Kind.EMBEDDING, "input": ["a", "b", "c"]}
    await answer(layer, core, a_call(**ask))

    hit = await answer(layer, core, a_call(**ask))
    clock.now += 61.0
    await answer(layer, core, a_call(**ask))

    assert hit[1] == payload
    assert len(core.calls) == 2


# --- Cache-Control ---


async def test_no_store_is_neither_looked_up_nor_stored() -> None:
    layer, core = an_exact_cache(), Scripted()
    no_store = a_call(cache=CacheControl(is_no_store=True))

    await answer(layer, core, no_store)
    later = a_call()
    await answer(layer, core, later)

    assert (no_store.notes.cache.status, no_store.notes.cache.reason) == (CacheStatus.BYPASS, "no_store")
    assert later.notes.cache.status is CacheStatus.MISS


async def test_no_cache_is_not_looked_up_and_refreshes_the_entry() -> None:
    layer, core = an_exact_cache(), Scripted()
    await answer(layer, core, a_call())
    core.events = (Start("m", "b"), Delta(text="newer"), Finish())
    no_cache = a_call(cache=CacheControl(is_no_cache=True))

    fresh = await answer(layer, core, no_cache)
    hit = await answer(layer, core, a_call())

    assert text_of(fresh) == text_of(hit) == "newer"
    assert (no_cache.notes.cache.status, no_cache.notes.cache.reason) == (CacheStatus.BYPASS, "no_cache")
    assert no_cache.notes.cache.was_stored


async def test_max_age_refuses_what_is_older() -> None:
    clock = Clock()
    layer, core = an_exact_cache(clock=clock), Scripted()
    await answer(layer, core, a_call())
    clock.now += 100.0
    young, old = a_call(cache=CacheControl(max_age_s=99.0)), a_call(cache=CacheControl(max_age_s=100.0))

    await answer(layer, core, old)
    await answer(layer, core, young)

    assert old.notes.cache.status is CacheStatus.EXACT
    assert (young.notes.cache.status, young.notes.cache.reason) == (CacheStatus.MISS, "too_old")


async def test_only_if_cached_never_asks_a_backend() -> None:
    layer, core = an_exact_cache(), Scripted()
    only = CacheControl(is_only_if_cached=True)

    with pytest.raises(CacheMissed):
        await answer(layer, core, a_call(cache=only))
    with pytest.raises(CacheMissed):
        await answer(layer, core, a_call(cache=replace(only, is_no_cache=True)))
    assert core.calls == []

    await answer(layer, core, a_call())
    assert text_of(await answer(layer, core, a_call(cache=only))) == "The capital is Paris."


async def test_only_if_cached_is_left_to_an_inner_tier_where_there_is_one() -> None:
    layer, core = an_exact_cache(is_last_tier=False), Scripted()

    await answer(layer, core, a_call(cache=CacheControl(is_only_if_cached=True)))

    assert len(core.calls) == 1


async def test_an_entry_past_its_time_is_not_served_even_by_a_store_that_kept_it() -> None:
    clock = Clock()
    layer, core = an_exact_cache(MemoryStore(clock=lambda: 0.0), ttl_s=60.0, clock=clock), Scripted()
    await answer(layer, core, a_call())
    clock.now += 61.0
    late = a_call()

    await answer(layer, core, late)

    assert late.notes.cache.reason == "expired"


# --- what is not stored ---


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (Finish({0: "length"}), "finish_length"),
        (Finish({0: "content_filter"}), "finish_content_filter"),
        (Finish({}), "incomplete"),
    ],
)
async def test_an_incomplete_answer_is_passed_on_and_not_kept(last: Finish, reason: str) -> None:
    layer, core = an_exact_cache(), Scripted((*PARIS[:-1], last))
    first = a_call()

    events = await answer(layer, core, first)
    await answer(layer, core, a_call())

    assert events[-1] == last
    assert (first.notes.cache.was_stored, first.notes.cache.store_reason) == (False, reason)
    assert len(core.calls) == 2


async def test_a_stream_that_ends_without_finish_is_passed_on_as_it_is_and_not_kept() -> None:
    layer, core = an_exact_cache(), Scripted(PARIS[:-1])

    assert await answer(layer, core, a_call()) == list(PARIS[:-1])
    await answer(layer, core, a_call())

    assert len(core.calls) == 2


async def test_an_error_reaches_the_client_and_nothing_is_kept() -> None:
    layer, core = an_exact_cache(), Scripted((*PARIS[:2], BackendUnavailable("gone")))

    for _ in range(2):
        with pytest.raises(BackendUnavailable, match="gone"):
            await answer(layer, core, a_call())

    assert len(core.calls) == 2


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda call: setattr(call.notes, "is_fallback", True), "fallback"),
        (lambda call: call.notes.checks.append(CheckNote("c", "output", "error", "pass")), "check_unrun"),
        (lambda call: setattr(call.notes.cache, "status", CacheStatus.SEMANTIC), "from_semantic"),
    ],
)
async def test_an_answer_of_doubtful_origin_is_not_kept(spoil: Any, reason: str) -> None:
    layer, core = an_exact_cache(), Scripted(on_call=spoil)
    call = a_call()

    await answer(layer, core, call)

    assert (call.notes.cache.was_stored, call.notes.cache.store_reason) == (False, reason)


async def test_a_client_that_leaves_closes_the_inner_handler_at_once_and_nothing_partial_is_kept() -> None:
    layer, core = an_exact_cache(), Scripted()
    core.hold_at(2)

    async with aclosing(compose([layer], core)(a_call())) as events:
        assert await anext(events) == PARIS[0]
        assert await anext(events) == PARIS[1]
        assert core.num_open == 1
    assert core.num_open == 0

    core.gates.clear()
    again = a_call()
    await answer(layer, core, again)
    assert again.notes.cache.status is CacheStatus.MISS


@pytest.mark.parametrize("position", range(4))
async def test_a_cancelled_call_closes_the_inner_handler_in_every_phase(position: int) -> None:
    layer, core = an_exact_cache(), Scripted()
    core.hold_at(position)
    task = asyncio.create_task(answer(layer, core, a_call()))
    await core.reached[position].wait()

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert core.num_open == 0


async def test_neither_prompt_nor_key_material_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    layer, core = an_exact_cache(), Scripted((*PARIS[:2], BackendUnavailable("gone")))

    with pytest.raises(BackendUnavailable):
        await answer(layer, core, a_call(messages=[{"role": "user", "content": "a secret prompt"}]))
    core.events = PARIS
    for _ in range(2):
        await answer(layer, core, a_call(messages=[{"role": "user", "content": "a secret prompt"}]))

    assert "secret" not in caplog.text
    assert "team" not in caplog.text


# --- on the real thing ---


async def test_entries_live_on_valkey_across_two_caches(valkey_url: str) -> None:
    core = Scripted()
    for attempt in range(2):
        store = RedisStore(valkey_url, timeout_s=60.0)
        layer = an_exact_cache(store, leases=store)
        call = a_call(stream=True)

        assert text_of(await answer(layer, core, call)) == "The capital is Paris."

        assert call.notes.cache.status is (CacheStatus.EXACT if attempt else CacheStatus.MISS)
        await layer.aclose()
        await store.aclose()
    assert len(core.calls) == 1


async def test_the_layer_sits_inside_another_and_around_another() -> None:
    seen: list[str] = []

    async def outer(call: Call, next: Any, /) -> AsyncGenerator[Event, None]:
        async with aclosing(next(call)) as events:
            async for event in events:
                seen.append(f"outer {call.notes.cache.was_stored}" if isinstance(event, Finish) else "outer")
                yield event

    async def inner(call: Call, next: Any, /) -> AsyncGenerator[Event, None]:
        async with aclosing(next(replace(call, request=call.request.with_fields(max_tokens=5)))) as events:
            async for event in events:
                yield event

    layer: ExactCache = an_exact_cache(bounds=PATIENT)
    core = Scripted()
    handler = compose([outer, layer, inner], core)

    assert [event async for event in handler(a_call())] == list(PARIS)
    assert seen == ["outer", "outer", "outer", "outer True"], "the entry is kept before `Finish` is seen"
    assert core.calls[0].request.fields["max_tokens"] == 5
