"""Hedging: a second try where the first is slow, within a budget, and never two answers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import weakref
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import pytest

from orchestration.core import Call, Delta, Event, Finish, Kind, Route, Router, Start
from orchestration.core.errors import BackendError, BackendUnavailable, StreamBroken
from orchestration.core.hedge import Hedge, HedgeBudget
from tests.orchestration.scripts import collect, make_call

CHAT = frozenset({Kind.CHAT})
EAGER = Hedge(after_ms=100.0, max_share=1.0)


class Time:
    """Sleepers wake when the test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.sleepers: list[tuple[float, asyncio.Event]] = []

    async def sleep(self, seconds: float) -> None:
        event = asyncio.Event()
        self.sleepers.append((self.now_s + seconds, event))
        await event.wait()

    async def pass_by(self, seconds: float) -> None:
        await settle()
        self.now_s += seconds
        for at, event in self.sleepers:
            if at <= self.now_s:
                event.set()
        await settle()


async def settle() -> None:
    """Let every task run until all of them wait."""
    for _ in range(30):
        await asyncio.sleep(0)


@dataclass
class Gated:
    """A backend whose first content waits for a gate."""

    name: str
    error: Exception | None = None
    break_off: bool = False
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    num_begun: int = 0
    num_closed: int = 0

    async def __call__(self, call: Call, /) -> AsyncGenerator[Event, None]:
        self.num_begun += 1
        try:
            yield Start(self.name, self.name)
            await self.gate.wait()
            if self.error is not None:
                raise self.error
            yield Delta(text="a")
            if self.break_off:
                raise BackendUnavailable("died")
            yield Delta(text="b")
            yield Finish()
        finally:
            self.num_closed += 1

    async def check_health(self) -> str | None:
        return None

    async def aclose(self) -> None:
        pass


class Pair:
    def __init__(self, hedge: Hedge | None = EAGER, *, retries: int = 0) -> None:
        self.slow, self.spare = Gated("slow"), Gated("spare")
        self.time = Time()
        route = Route("m", (self.slow, self.spare), CHAT, retries=retries, hedge=hedge)
        self.router = Router({"m": route}, sleep=self.time.sleep, rng=random.Random(0))
        self.call = make_call()
        self.task: asyncio.Task[list[Event]] | None = None

    def begin(self) -> asyncio.Task[list[Event]]:
        self.task = asyncio.create_task(collect(self.router(self.call)))
        return self.task

    def attempts(self) -> list[tuple[str, str | None]]:
        return sorted((one.backend, one.error) for one in self.call.notes.attempts)


async def test_the_spare_answers_where_the_first_is_slow_and_the_first_is_closed_at_once() -> None:
    pair = Pair()
    task = pair.begin()
    await pair.time.pass_by(0.2)
    pair.spare.gate.set()

    events = await task

    assert events == [Start("spare", "spare"), Delta(text="a"), Delta(text="b"), Finish()]
    assert (pair.slow.num_closed, pair.spare.num_closed) == (1, 1)
    assert pair.attempts() == [("slow", "hedge_lost"), ("spare", None)]
    assert (pair.call.notes.backend, pair.call.notes.is_fallback) == ("spare", False)
    assert pair.call.notes.extra["routing"]["hedge"]["after_ms"] == 100.0


async def test_the_first_may_still_win_and_then_the_spare_is_closed() -> None:
    pair = Pair()
    task = pair.begin()
    await pair.time.pass_by(0.2)
    pair.slow.gate.set()

    assert (await task)[0] == Start("slow", "slow")
    assert pair.attempts() == [("slow", None), ("spare", "hedge_lost")]
    assert pair.spare.num_closed == 1


async def test_both_at_the_same_moment_give_one_answer() -> None:
    pair = Pair()
    task = pair.begin()
    await pair.time.pass_by(0.2)
    pair.slow.gate.set()
    pair.spare.gate.set()

    assert [event for event in await task if isinstance(event, Finish)] == [Finish()]
    assert sorted(str(error) for _, error in pair.attempts()) == ["None", "hedge_lost"]


async def test_a_fast_first_try_is_alone() -> None:
    pair = Pair()
    pair.slow.gate.set()

    await pair.begin()

    assert pair.spare.num_begun == 0
    assert "hedge" not in pair.call.notes.extra["routing"]


async def test_after_content_there_is_no_second_try() -> None:
    pair = Pair()
    pair.slow.gate.set()
    events = pair.router(pair.call)
    await anext(events)

    await pair.time.pass_by(10.0)
    rest = await collect(events)

    assert rest[-1] == Finish()
    assert pair.spare.num_begun == 0


async def test_off_by_default() -> None:
    pair = Pair(hedge=None)
    task = pair.begin()

    await pair.time.pass_by(100.0)
    assert pair.spare.num_begun == 0
    pair.slow.gate.set()

    await task


async def test_one_that_fails_leaves_the_call_to_the_other() -> None:
    pair = Pair()
    pair.spare.error = BackendUnavailable("down")
    task = pair.begin()
    await pair.time.pass_by(0.2)
    pair.spare.gate.set()
    await settle()
    assert not task.done()
    pair.slow.gate.set()

    assert (await task)[0] == Start("slow", "slow")
    assert pair.attempts() == [("slow", None), ("spare", "backend_unavailable")]


async def test_where_both_fail_the_spare_is_not_asked_once_more() -> None:
    pair = Pair()
    pair.slow.error, pair.spare.error = BackendError("odd"), BackendUnavailable("down")
    task = pair.begin()
    await pair.time.pass_by(0.2)
    pair.slow.gate.set()
    pair.spare.gate.set()

    with pytest.raises(BackendError, match="odd"):
        await task

    assert (pair.slow.num_begun, pair.spare.num_begun) == (1, 1)


@pytest.mark.parametrize("has_answer", [True, False])
async def test_what_was_raised_is_in_no_cycle_with_the_tries(has_answer: bool) -> None:
    pair = Pair()
    pair.slow.error, pair.spare.error = BackendUnavailable("down"), None if has_answer else BackendUnavailable("down")
    gc.collect()
    gc.disable()
    try:
        task = pair.begin()
        await pair.time.pass_by(0.2)
        pair.slow.gate.set()
        await settle()
        pair.spare.gate.set()
        with contextlib.nullcontext() if has_answer else pytest.raises(BackendUnavailable):
            await task
        kept = [weakref.ref(pair.slow), weakref.ref(pair.spare)]
        pair.slow.error = pair.spare.error = None  # the backends' own part of a cycle
        del pair, task
        await settle()
        assert [each() for each in kept] == [None, None]
    finally:
        gc.enable()


async def test_a_winner_that_breaks_off_is_not_replaced() -> None:
    pair = Pair()
    pair.spare.break_off = True
    task = pair.begin()
    await pair.time.pass_by(0.2)
    pair.spare.gate.set()

    with pytest.raises(StreamBroken, match="died"):
        await task
    assert pair.slow.num_closed == 1


async def test_a_client_that_leaves_closes_both() -> None:
    pair = Pair()
    task = pair.begin()
    await pair.time.pass_by(0.2)

    task.cancel()
    await asyncio.wait([task])

    assert (pair.slow.num_closed, pair.spare.num_closed) == (1, 1)
    assert [name for name in map(asyncio.Task.get_name, asyncio.all_tasks()) if name == "hedged-try"] == []


async def test_the_budget_bounds_the_share_of_second_tries() -> None:
    budget = HedgeBudget(Hedge(after_ms=1.0, max_share=0.05))

    taken = []
    for _ in range(1000):
        budget.earn()
        taken.append(budget.take())

    assert sum(taken) == 50
    assert not any(taken[:19])


async def test_saved_up_second_tries_are_bounded() -> None:
    budget = HedgeBudget(Hedge(after_ms=1.0, max_share=0.05))
    for _ in range(10_000):
        budget.earn()

    assert sum(budget.take() for _ in range(1000)) == 10


async def test_the_wait_is_a_quantile_of_what_was_measured() -> None:
    budget = HedgeBudget(Hedge(quantile=0.95, max_share=0.05))
    now_s = 0.0

    async def taking(seconds: float) -> AsyncGenerator[Event, None]:
        nonlocal now_s
        now_s += seconds
        yield Finish()

    assert budget.wait_s() is None
    for number in range(100):
        await collect(budget.timed(taking((number + 1) / 1000), clock=lambda: now_s))

    assert budget.wait_s() == pytest.approx(0.096)
