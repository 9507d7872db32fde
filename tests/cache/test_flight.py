from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.exact import ExactCache
from cache.memory_store import MemoryStore
from cache.redis_store import RedisStore
from orchestration.core import CacheControl, CacheStatus, Call, Delta, Event, Finish, Start, compose
from orchestration.core.errors import BackendUnavailable, StreamBroken
from orchestration.core.protocols import Handler
from tests.cache.scripted import PARIS, PATIENT, Clock, Scripted, a_call, an_exact_cache, answer, text_of

START = Start("m", "b")


async def begin(layer: ExactCache, core: Handler, call: Call) -> tuple[AsyncGenerator[Event, None], Event]:
    """Give the answer as far as its first event."""
    events = compose([layer], core)(call)
    return events, await anext(events)


async def rest_of(events: AsyncGenerator[Event, None]) -> list[Event]:
    return [event async for event in events]


async def test_equal_calls_at_once_are_bought_once(valkey_url: str) -> None:
    for store in (MemoryStore(), RedisStore(valkey_url, timeout_s=60.0)):
        layer, core = an_exact_cache(store), Scripted()
        calls = [a_call(f"c{i}", stream=i % 2 == 0) for i in range(64)]

        answers = await asyncio.gather(*(answer(layer, core, call) for call in calls))

        assert len(core.calls) == 1
        assert {text_of(events) for events in answers} == {"The capital is Paris."}
        statuses = [call.notes.cache.status for call in calls]
        assert (statuses.count(CacheStatus.MISS), statuses.count(CacheStatus.EXACT)) == (1, 63)
        if isinstance(store, RedisStore):
            await store.aclose()


async def test_unequal_calls_at_once_never_share() -> None:
    layer, core = an_exact_cache(), Scripted()
    calls = [a_call(f"c{i}", seed=i // 2, tenant=f"t{i % 2}") for i in range(8)]

    await asyncio.gather(*(answer(layer, core, call) for call in calls))

    assert len(core.calls) == 8


async def test_a_follower_reads_along_and_a_late_one_reads_from_the_start() -> None:
    layer, core = an_exact_cache(), Scripted()
    gate = core.hold_at(2)
    leader, follower, late = a_call("c1"), a_call("c2"), a_call("c3")
    first, start = await begin(layer, core, leader)
    second, their_start = await begin(layer, core, follower)
    assert (await anext(first), await anext(second)) == (PARIS[1], PARIS[1])
    third, late_start = await begin(layer, core, late)
    gate.set()

    assert start == their_start == late_start == PARIS[0]
    assert await rest_of(first) == await rest_of(second) == list(PARIS[2:])
    assert await rest_of(third) == list(PARIS[1:])
    assert leader.notes.cache.status is CacheStatus.MISS
    for call in (follower, late):
        note = call.notes.cache
        assert (note.status, note.is_collapsed, note.entry_call) == (CacheStatus.EXACT, True, "c1")
        assert (call.notes.model, call.notes.backend, call.notes.cost_usd) == ("real-model", "echo", 0.0)


async def test_the_entry_in_the_making_is_the_one_that_is_kept() -> None:
    layer, core = an_exact_cache(), Scripted()
    gate = core.hold_at(2)
    follower, later = a_call("c2"), a_call("c3")
    first, _ = await begin(layer, core, a_call("c1"))
    second, _ = await begin(layer, core, follower)
    gate.set()
    await asyncio.gather(rest_of(first), rest_of(second))

    await answer(layer, core, later)

    assert later.notes.cache.entry == follower.notes.cache.entry
    assert later.notes.cache.entry_created_at == follower.notes.cache.entry_created_at


async def test_the_leader_leaves_and_the_others_get_and_keep_the_whole_answer() -> None:
    layer, core = an_exact_cache(), Scripted()
    gate = core.hold_at(2)
    leader, others = a_call("c1"), [a_call("c2"), a_call("c3")]
    first, _ = await begin(layer, core, leader)
    (second, _), (third, _) = [await begin(layer, core, call) for call in others]

    await first.aclose()
    assert core.num_open == 1
    gate.set()

    assert await rest_of(second) == await rest_of(third) == list(PARIS[1:])
    assert [call.notes.backend for call in others] == ["echo", "echo"]
    assert sorted(call.notes.cost_usd or 0.0 for call in others) == [0.0, 0.25], "one of those left pays"
    hit = a_call("c4")
    await answer(layer, core, hit)
    assert hit.notes.cache.entry_call == "c1"


async def test_the_last_reader_to_leave_takes_the_flight_down_and_a_newcomer_asks_anew() -> None:
    layer, core = an_exact_cache(), Scripted()
    core.hold_at(2)
    first, _ = await begin(layer, core, a_call("c1"))
    second, _ = await begin(layer, core, a_call("c2"))
    await first.aclose()
    assert core.num_open == 1

    await second.aclose()
    assert core.num_open == 0

    core.gates.clear()
    newcomer = a_call("c3")
    assert await answer(layer, core, newcomer) == list(PARIS)
    assert newcomer.notes.cache.status is CacheStatus.MISS


async def test_an_error_reaches_every_reader() -> None:
    layer, core = an_exact_cache(), Scripted((*PARIS[:2], BackendUnavailable("gone")))
    gate = core.hold_at(2)
    readers = [(await begin(layer, core, a_call(f"c{i}")))[0] for i in range(3)]
    gate.set()

    outcomes = await asyncio.gather(*(rest_of(events) for events in readers), return_exceptions=True)

    assert [str(outcome) for outcome in outcomes] == ["gone"] * 3
    assert all(isinstance(outcome, BackendUnavailable) for outcome in outcomes)


async def test_an_error_before_content_reaches_every_reader_before_content() -> None:
    layer, core = an_exact_cache(), Scripted((BackendUnavailable("refused"),))
    gate = core.hold_at(0)
    calls = [a_call(f"c{i}") for i in range(3)]
    tasks = [asyncio.create_task(answer(layer, core, call)) for call in calls]
    await core.reached[0].wait()
    gate.set()

    outcomes = await asyncio.gather(*tasks, return_exceptions=True)

    assert [str(outcome) for outcome in outcomes] == ["refused"] * 3
    assert {call.notes.cache.status for call in calls} == {CacheStatus.MISS}


@pytest.mark.parametrize(
    "stricter",
    [
        a_call("c2", cache=CacheControl(is_no_cache=True)),
        a_call("c2", cache=CacheControl(is_no_store=True)),
        a_call("c2", cache=CacheControl(max_age_s=60.0)),
        a_call("c2", threshold=0.99),
    ],
    ids=["no_cache", "no_store", "max_age", "threshold"],
)
async def test_a_call_under_other_controls_joins_no_flight(stricter: Call) -> None:
    layer, core = an_exact_cache(), Scripted()
    gate = core.hold_at(2)
    first, _ = await begin(layer, core, a_call("c1"))
    second, _ = await begin(layer, core, stricter)
    gate.set()

    await asyncio.gather(rest_of(first), rest_of(second))

    assert len(core.calls) == 2
    assert not stricter.notes.cache.is_collapsed


async def test_no_cache_calls_do_not_even_join_each_other() -> None:
    layer, core = an_exact_cache(), Scripted()
    calls = [a_call(f"c{i}", cache=CacheControl(is_no_cache=True)) for i in range(3)]

    await asyncio.gather(*(answer(layer, core, call) for call in calls))

    assert len(core.calls) == 3


async def test_a_call_with_max_age_joins_only_a_flight_that_is_young_enough() -> None:
    clock = Clock()
    layer, core = an_exact_cache(clock=clock), Scripted()
    gate = core.hold_at(2)
    control = CacheControl(max_age_s=10.0)
    first, _ = await begin(layer, core, a_call("c1", cache=control))
    clock.now += 10.0
    young, _ = await begin(layer, core, a_call("c2", cache=control))
    clock.now += 1.0
    old, _ = await begin(layer, core, a_call("c3", cache=control))
    gate.set()

    await asyncio.gather(rest_of(first), rest_of(young), rest_of(old))

    assert len(core.calls) == 2


async def test_wire_frames_go_to_the_leader_alone() -> None:
    framed = Delta(text="Hi", raw=b"data: x", dialect="openai")
    layer, core = an_exact_cache(), Scripted((START, framed, Finish(raw=b"data: [DONE]", dialect="openai")))
    gate = core.hold_at(2)
    first, _ = await begin(layer, core, a_call("c1"))
    second, _ = await begin(layer, core, a_call("c2"))
    gate.set()

    assert (await rest_of(first))[0] == framed
    assert await rest_of(second) == [Delta(text="Hi"), Finish()]


async def test_a_streamed_follower_of_a_whole_answer_gets_a_stream() -> None:
    layer, core = an_exact_cache(), Scripted((START, Delta(text="many words " * 50), Finish()))
    gate = core.hold_at(1)
    first, _ = await begin(layer, core, a_call("c1", stream=False))
    second, _ = await begin(layer, core, a_call("c2", stream=True))
    gate.set()

    assert len(await rest_of(first)) == 2
    pieces = await rest_of(second)
    assert len(pieces) > 10
    assert text_of(pieces) == "many words " * 50


async def test_a_follower_of_a_semantic_answer_says_so() -> None:
    def serve_semantically(call: Call) -> None:
        call.notes.cache = replace(call.notes.cache, status=CacheStatus.SEMANTIC, similarity=0.97, threshold=0.95)

    layer, core = an_exact_cache(), Scripted(on_call=serve_semantically)
    gate = core.hold_at(2)
    follower = a_call("c2")
    first, _ = await begin(layer, core, a_call("c1"))
    second, _ = await begin(layer, core, follower)
    gate.set()
    await asyncio.gather(rest_of(first), rest_of(second))

    note = follower.notes.cache
    assert (note.status, note.similarity, note.threshold) == (CacheStatus.SEMANTIC, 0.97, 0.95)
    assert (note.is_collapsed, note.was_stored) == (True, False)


async def test_inner_layers_run_to_their_end_though_the_readers_have_left_with_finish() -> None:
    layer, core, ended = an_exact_cache(), Scripted(), asyncio.Event()

    async def inner(call: Call, next: Handler, /) -> AsyncGenerator[Event, None]:
        async with aclosing(next(call)) as events:
            async for event in events:
                yield event
        ended.set()

    async with aclosing(compose([layer, inner], core)(a_call())) as events:
        async for event in events:
            if isinstance(event, Finish):
                break

    await ended.wait()


async def test_an_error_after_finish_reaches_nobody_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    layer, core = an_exact_cache(), Scripted((*PARIS, RuntimeError("too late")))

    assert await answer(layer, core, a_call()) == list(PARIS)
    await layer.aclose()

    assert "flight.failed_after_finish" in caplog.text


async def test_closing_the_layer_ends_every_flight_with_an_error_that_says_why() -> None:
    layer, core = an_exact_cache(), Scripted()
    core.hold_at(2)
    first, _ = await begin(layer, core, a_call("c1"))
    second, _ = await begin(layer, core, a_call("c2"))

    await layer.aclose()

    assert core.num_open == 0
    for events in (first, second):
        with pytest.raises(BackendUnavailable, match="closing"):
            await rest_of(events)


async def test_an_answer_that_lands_during_a_look_up_is_found_by_it() -> None:
    class Late(MemoryStore):
        """Answers one read only once `gate` is set, with what was there when it was asked."""

        gate: asyncio.Event | None = None
        asked = asyncio.Event()

        async def get(self, key: str) -> bytes | None:
            value, gate = await super().get(key), self.gate
            if gate is not None:
                self.gate = None
                self.asked.set()
                await gate.wait()
            return value

    store, core = Late(), Scripted()
    layer, store.gate = an_exact_cache(store), asyncio.Event()
    gate, early = store.gate, a_call("c1")
    task = asyncio.create_task(answer(layer, core, early))
    await store.asked.wait()
    await answer(layer, core, a_call("c2"))

    gate.set()
    await task

    assert len(core.calls) == 1
    assert early.notes.cache.status is CacheStatus.EXACT


async def test_hits_leave_nothing_behind() -> None:
    layer, core = an_exact_cache(), Scripted()
    for _ in range(5):
        await answer(layer, core, a_call())
    await layer.aclose()

    assert len(asyncio.all_tasks()) == 1


# --- answers beyond the bound ---

LONG: tuple[Event, ...] = (START, *[Delta(text=f"{i:04d} " + "x" * 195) for i in range(100)], Finish())
SMALL = replace(PATIENT, max_recording_bytes=3000, patience_s=20.0)


async def test_an_answer_beyond_the_bound_is_whole_for_its_readers_and_not_kept() -> None:
    layer, core = an_exact_cache(bounds=SMALL), Scripted(LONG)
    gate = core.hold_at(1)
    leader, follower = a_call("c1"), a_call("c2")
    first, _ = await begin(layer, core, leader)
    second, _ = await begin(layer, core, follower)
    gate.set()

    for events in await asyncio.gather(rest_of(first), rest_of(second)):
        assert events == list(LONG[1:])
    assert leader.notes.cache.store_reason == "too_large"


async def test_an_answer_beyond_the_bound_is_joined_by_nobody_new() -> None:
    layer, core = an_exact_cache(bounds=SMALL), Scripted(LONG)
    core.hold_at(50)
    first, _ = await begin(layer, core, a_call("c1"))
    for _ in range(49):
        await anext(first)
    await core.reached[50].wait()

    asked = asyncio.Event()
    core.on_call = lambda call: asked.set()
    task = asyncio.create_task(answer(layer, core, a_call("c2")))
    await asked.wait()

    core.gates[50].set()
    assert await rest_of(first) == list(LONG[50:])
    assert await task == list(LONG)


async def test_a_slow_reader_alone_holds_the_backend_back() -> None:
    pulled: list[int] = []

    async def core(call: Call, /) -> AsyncGenerator[Event, None]:
        for position, event in enumerate(LONG):
            pulled.append(position)
            yield event
            await asyncio.sleep(0)

    layer = an_exact_cache(bounds=replace(SMALL, patience_s=0.0))
    first, _ = await begin(layer, core, a_call())
    for _ in range(200):
        await asyncio.sleep(0)

    assert len(pulled) < 15
    assert await rest_of(first) == list(LONG[1:])


async def test_a_slow_reader_stalls_the_others_for_a_bounded_time_and_is_then_cut_off() -> None:
    layer, core = an_exact_cache(bounds=replace(SMALL, patience_s=0.05)), Scripted(LONG)
    gate = core.hold_at(1)
    slow, _ = await begin(layer, core, a_call("c1"))
    fast, _ = await begin(layer, core, a_call("c2"))
    gate.set()

    assert await rest_of(fast) == list(LONG[1:])

    with pytest.raises(StreamBroken, match="too slowly"):
        await rest_of(slow)


# --- any coming and going ---


@dataclass(frozen=True)
class Visitor:
    """A reader that comes, reads and leaves after so many steps of the event loop or events."""

    comes_after: int
    pause: int
    leaves_after: int | None


VISITORS = st.builds(
    Visitor,
    comes_after=st.integers(0, 60),
    pause=st.integers(0, 4),
    leaves_after=st.none() | st.integers(1, 20),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(VISITORS, min_size=1, max_size=6), st.sampled_from([500, 3000, 10**6]), st.booleans())
def test_however_readers_come_and_go_each_gets_the_answer_from_its_start(
    visitors: list[Visitor], max_bytes: int, is_broken: bool
) -> None:
    whole = text_of(LONG[:30])
    core = Scripted((*LONG[:30], BackendUnavailable("gone") if is_broken else Finish()))

    async def run() -> None:
        layer = an_exact_cache(bounds=replace(PATIENT, max_recording_bytes=max_bytes, patience_s=20.0))
        seen = await asyncio.gather(*(_visit(compose([layer], _in_steps(core)), visitor) for visitor in visitors))
        await layer.aclose()

        for visitor, events in zip(visitors, seen, strict=True):
            assert whole.startswith(text_of(events))
            if visitor.leaves_after is None:
                assert text_of(events) == whole
                assert isinstance(events[-1], Finish) is not is_broken
        assert core.num_open == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def _in_steps(core: Handler) -> Handler:
    """Let others run before each event."""

    async def handler(call: Call, /) -> AsyncGenerator[Event, None]:
        async with aclosing(core(call)) as events:
            async for event in events:
                await asyncio.sleep(0)
                yield event

    return handler


async def _visit(handler: Handler, visitor: Visitor) -> list[Event]:
    for _ in range(visitor.comes_after):
        await asyncio.sleep(0)
    seen: list[Event] = []
    with contextlib.suppress(BackendUnavailable):
        async with aclosing(handler(a_call())) as events:
            async for event in events:
                seen.append(event)
                if len(seen) == visitor.leaves_after:
                    break
                for _ in range(visitor.pause):
                    await asyncio.sleep(0)
    return seen
