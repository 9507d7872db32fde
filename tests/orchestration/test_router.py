"""The router: one model's name, several backends, no content twice."""

from __future__ import annotations

import random

import pytest

from orchestration.core import Delta, Event, Finish, Kind, Price, Route, Router, Start, Usage
from orchestration.core.errors import (
    BackendError,
    BackendRefused,
    BackendTimeout,
    BackendUnavailable,
    InvalidRequest,
    NotFound,
    StreamBroken,
)
from orchestration.core.retry import Backoff
from tests.orchestration.scripts import Scripted, answer, collect, make_call

CHAT = frozenset({Kind.CHAT})


async def no_sleep(_seconds: float) -> None:
    pass


def route(*backends: Scripted, model: str = "m", retries: int = 0, fallbacks: tuple[str, ...] = ()) -> Route:
    return Route(model=model, backends=backends, kinds=CHAT, retries=retries, fallbacks=fallbacks)


def router(*routes: Route) -> Router:
    return Router({one.model: one for one in routes}, sleep=no_sleep)


async def test_an_error_before_content_falls_back_and_is_noted() -> None:
    down, up = Scripted([Start("x", "b"), BackendUnavailable("down")], name="down"), Scripted(answer(), name="up")
    call = make_call()

    events = await collect(router(route(down, fallbacks=("other",)), route(up, model="other"))(call))

    assert events == answer()
    assert [(a.backend, a.error) for a in call.notes.attempts] == [("down", "backend_unavailable"), ("up", None)]
    assert (call.notes.backend, call.notes.model, call.notes.is_fallback) == ("up", "real", True)
    assert up.models == ["other"]


async def test_an_error_after_content_is_never_tried_again() -> None:
    broken = Scripted([Start("x", "b"), Delta(text="half"), BackendUnavailable("died")])
    spare = Scripted(answer())
    seen: list[Event] = []

    async def read() -> None:
        async for event in router(route(broken, spare, retries=3))(make_call()):
            seen.append(event)

    with pytest.raises(StreamBroken, match="died"):
        await read()

    assert seen == [Start("x", "b"), Delta(text="half")]
    assert spare.models == []


async def test_a_stream_without_a_finish_is_an_error_not_a_finish() -> None:
    with pytest.raises(StreamBroken, match="without saying why"):
        await collect(router(route(Scripted([Start("x", "b"), Delta(text="half")])))(make_call()))
    with pytest.raises(BackendError, match="without saying why"):
        await collect(router(route(Scripted([Start("x", "b")])))(make_call()))


async def test_a_retryable_error_is_tried_again_and_a_timeout_is_not() -> None:
    flaky, slow = Scripted([BackendError("odd")]), Scripted([BackendTimeout("slow")])

    with pytest.raises(BackendError):
        await collect(router(route(flaky, retries=2))(make_call()))
    with pytest.raises(BackendTimeout):
        await collect(router(route(slow, retries=2))(make_call()))

    assert (len(flaky.models), len(slow.models)) == (3, 1)


async def test_the_clients_own_fault_is_not_asked_elsewhere() -> None:
    refusing, spare = Scripted([BackendRefused("no such field", status=422)]), Scripted(answer())

    with pytest.raises(BackendRefused):
        await collect(router(route(refusing, spare))(make_call()))

    assert spare.models == []


async def test_backends_take_turns() -> None:
    first, second = Scripted(answer(), name="first"), Scripted(answer(), name="second")
    one = router(route(first, second))

    for _ in range(4):
        await collect(one(make_call()))

    assert (len(first.models), len(second.models)) == (2, 2)


async def test_an_unknown_model_names_the_known_ones() -> None:
    with pytest.raises(NotFound, match="Known models: m") as caught:
        await collect(router(route(Scripted(answer())))(make_call("nope")))
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


async def test_a_model_of_another_kind_is_refused_by_name() -> None:
    embedding = Route(model="e", backends=(Scripted(answer()),), kinds=frozenset({Kind.EMBEDDING}))
    with pytest.raises(InvalidRequest, match="only: embedding"):
        await collect(router(embedding)(make_call("e")))


async def test_closing_the_stream_closes_the_backend_at_once() -> None:
    backend = Scripted([Start("x", "b"), Delta(text="a"), Delta(text="b"), Finish()])
    events = router(route(backend))(make_call())

    await anext(events)
    await events.aclose()

    assert backend.num_closed == 1


async def test_usage_is_priced_with_the_cached_part_apart() -> None:
    usage = Usage(prompt_tokens=1_000_000, completion_tokens=500_000, cached_tokens=400_000)
    priced = Route(
        model="m",
        backends=(Scripted([Start("x", "b"), Delta(text="a"), Finish(usage=usage)]),),
        kinds=CHAT,
        price=Price(input_per_1m=1.0, output_per_1m=2.0, cached_input_per_1m=0.5),
    )
    call = make_call()

    await collect(Router({"m": priced})(call))

    assert call.notes.cost_usd == pytest.approx(0.6 + 0.2 + 1.0)


def test_waits_grow_to_a_bound_and_follow_the_backends_word() -> None:
    backoff = Backoff(base_s=0.1, max_s=1.0, rng=random.Random(0))

    waits = [backoff.wait_s(attempt, BackendError("x")) for attempt in range(1, 30)]

    assert all(0.0 <= wait <= 1.0 for wait in waits)
    assert max(waits[4:]) > 0.5
    assert backoff.wait_s(1, BackendError("x", retry_after_s=0.25)) == 0.25
    assert backoff.wait_s(1, BackendError("x", retry_after_s=99)) == 1.0
