"""Cool-downs: by the sort of error, longer each time, ended by a probe, shared, never in the way of the last one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import pytest

from orchestration.core import Call, Event, Kind, Route, Router, Start
from orchestration.core.cooldown import cooldown_s
from orchestration.core.errors import (
    BackendError,
    BackendRefused,
    BackendTimeout,
    BackendUnavailable,
    CredentialsRefused,
    LaminaError,
    Overloaded,
)
from orchestration.core.failure import ASKS_SAME_AGAIN, IS_CLIENTS_FAULT, IS_DOWN, IS_ODD, IS_SLOW, ROTATES
from orchestration.core.standing import Standings
from tests.orchestration.scripts import Scripted, answer, collect, make_call

CHAT = frozenset({Kind.CHAT})


@dataclass
class Clock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Told:
    """What was told to the other processes."""

    said: list[tuple[str, str]] = field(default_factory=list)

    def announce(self, id: str, *, for_s: float, reason: str) -> None:
        self.said.append(("cool", id))

    def lift(self, id: str) -> None:
        self.said.append(("lift", id))


class Pool:
    """Two backends of one model, on a clock that tests move."""

    def __init__(self, *backends: Scripted, fallbacks: tuple[Route, ...] = ()) -> None:
        self.clock = Clock()
        self.standings = Standings(clock=self.clock, now=self.clock)
        self.route = Route("m", backends, CHAT, retries=0, fallbacks=tuple(one.model for one in fallbacks))
        routes = {one.model: one for one in (self.route, *fallbacks)}
        self.router = Router(routes, standings=self.standings, sleep=self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.clock.now_s += seconds

    async def ask(self) -> Call:
        call = make_call()
        await collect(self.router(call))
        return call

    def cooled_s(self, place: int = 0) -> float:
        return self.standings.of(self.route.targets()[place].id).cooled_s(self.clock())


@pytest.mark.parametrize(
    ("error", "first_s"),
    [
        (BackendRefused("no such field", status=422), 0.0),
        (CredentialsRefused("key"), 60.0),
        (Overloaded("full"), 1.0),
        (Overloaded("full", retry_after_s=20.0), 20.0),
        (Overloaded("full", retry_after_s=9999.0), 60.0),
        (BackendUnavailable("down"), 1.0),
        (BackendTimeout("slow"), 2.0),
        (BackendError("odd"), 0.0),
    ],
)
def test_each_sort_of_error_has_its_time(error: LaminaError, first_s: float) -> None:
    assert cooldown_s(error, streak=1) == first_s


def test_times_double_up_to_a_bound() -> None:
    waits = [cooldown_s(BackendUnavailable("down"), streak=streak) for streak in (1, 2, 3, 10, 10_000)]

    assert waits == [1.0, 2.0, 4.0, 30.0, 30.0]


def test_an_odd_answer_counts_once_it_repeats() -> None:
    assert [cooldown_s(BackendError("odd"), streak=streak) for streak in (1, 2, 3, 4)] == [0.0, 0.0, 1.0, 2.0]


def test_the_classes_of_failures_are_apart() -> None:
    refused, slow, down = BackendRefused("x", status=400), BackendTimeout("x"), BackendUnavailable("x")
    key, odd = CredentialsRefused("x"), BackendError("x")

    assert [IS_CLIENTS_FAULT(one) for one in (refused, slow, down, key, odd)] == [True, False, False, False, False]
    assert [ASKS_SAME_AGAIN(one) for one in (refused, slow, down, key, odd)] == [False, False, True, False, True]
    for condition, only in ((IS_SLOW, slow), (IS_DOWN, down), (ROTATES, key), (IS_ODD, odd)):
        assert [one for one in (refused, slow, down, key, odd) if condition(one)] == [only]


async def test_a_dead_backend_is_not_asked_again_until_its_probe() -> None:
    dead, live = Scripted([BackendUnavailable("down")], name="dead"), Scripted(answer(), name="live")
    pool = Pool(dead, live)

    for _ in range(6):
        await pool.ask()
    assert (len(dead.models), len(live.models)) == (1, 6)

    pool.clock.now_s += 1.1
    for _ in range(6):
        await pool.ask()
    assert len(dead.models) == 2
    assert pool.cooled_s() == pytest.approx(2.0)


async def test_a_probe_that_succeeds_brings_the_backend_back() -> None:
    flaky, live = Scripted([BackendUnavailable("down")], name="flaky"), Scripted(answer(), name="live")
    pool = Pool(flaky, live)
    await pool.ask()
    flaky.script = answer()
    pool.clock.now_s += 1.1

    for _ in range(4):
        await pool.ask()

    assert len(flaky.models) == 1 + 2
    assert pool.standings.describe(pool.route.targets()[0].id)["failures_in_a_row"] == 0


async def test_one_call_alone_is_the_probe() -> None:
    flaky, live = Scripted([BackendUnavailable("down")], name="flaky"), Scripted(answer(), name="live")
    pool = Pool(flaky, live)
    await pool.ask()
    flaky.script = answer()
    pool.clock.now_s += 1.1
    standing = pool.standings.of(pool.route.targets()[0].id)

    assert standing.begin(pool.clock())
    for _ in range(3):
        await pool.ask()
    assert len(flaky.models) == 1
    standing.end(was_probe=True)
    for _ in range(2):
        await pool.ask()

    assert len(flaky.models) == 2


async def test_where_all_are_left_alone_the_least_bad_is_asked_anyway() -> None:
    slow, dead = Scripted([BackendTimeout("slow")], name="slow"), Scripted([BackendUnavailable("down")], name="dead")
    pool = Pool(slow, dead)
    with pytest.raises(LaminaError):
        await pool.ask()
    dead.script = answer()

    call = await pool.ask()

    assert [one.backend for one in call.notes.attempts] == ["dead"]


async def test_fallbacks_come_before_a_backend_that_is_left_alone() -> None:
    dead, spare = Scripted([BackendUnavailable("down")], name="dead"), Scripted(answer(), name="spare")
    pool = Pool(dead, fallbacks=(Route("other", (spare,), CHAT),))
    await pool.ask()

    call = await pool.ask()

    assert [one.backend for one in call.notes.attempts] == ["spare"]
    assert call.notes.is_fallback
    assert len(dead.models) == 1


async def test_the_clients_own_fault_cools_nothing() -> None:
    pool = Pool(Scripted([BackendRefused("no such field", status=422)]), Scripted(answer()))

    with pytest.raises(BackendRefused):
        await pool.ask()

    assert pool.cooled_s() == 0.0


async def test_an_answer_to_a_call_from_before_a_cool_down_does_not_end_it() -> None:
    backend = Scripted(answer())
    pool = Pool(backend)
    standing = pool.standings.of(pool.route.targets()[0].id)
    begun_s = pool.clock()
    pool.clock.now_s += 1.0

    pool.standings.failed(standing, Overloaded("full", retry_after_s=30.0))
    pool.standings.answered(standing, begun_s=begun_s)

    assert pool.cooled_s() == 30.0


async def test_others_are_told_of_a_cool_down_and_of_its_end() -> None:
    flaky = Scripted([BackendUnavailable("down")], name="flaky")
    pool = Pool(flaky)
    told = pool.standings.cooldowns = Told()
    with pytest.raises(BackendUnavailable):
        await pool.ask()
    flaky.script = answer()

    await pool.ask()

    id = pool.route.targets()[0].id
    assert told.said == [("cool", id), ("lift", id)]


def test_what_others_say_counts_and_ends_when_they_take_it_back() -> None:
    clock = Clock()
    standings = Standings(clock=clock)

    standings.hear(["a", "b"], {"a": (5.0, "backend_unavailable")})
    heard = (standings.of("a").cooled_s(clock()), standings.of("b").cooled_s(clock()))
    standings.hear(["a", "b"], {})

    assert heard == (5.0, 0.0)
    assert standings.of("a").cooled_s(clock()) == 0.0


def test_an_own_cool_down_that_nobody_has_heard_of_yet_stands() -> None:
    clock = Clock()
    standings = Standings(clock=clock)
    standings.cool(standings.of("a"), for_s=5.0, reason="x")

    standings.hear(["a"], {})

    assert standings.of("a").cooled_s(clock()) == 5.0


async def test_load_is_counted_while_a_call_runs_and_given_back_however_it_ends() -> None:
    backend = Scripted(answer())
    pool = Pool(backend)
    standing = pool.standings.of(pool.route.targets()[0].id)

    events: AsyncGenerator[Event, None] = pool.router(make_call())
    assert await anext(events) == Start("real", "b")
    during = standing.in_flight
    await events.aclose()

    assert (during, standing.in_flight, standing.attempts) == (1, 0, 1)
