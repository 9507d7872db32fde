from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from types import MappingProxyType

import pytest

from gateway.limits.counters import Counters
from gateway.limits.errors import BudgetExceeded, LimitsUnavailable
from gateway.limits.estimate import Estimator, ModelCost
from gateway.limits.layer import LimitsLayer
from gateway.limits.rules import NANO_PER_USD, Limits, Rules
from gateway.limits.store import RedisScripts
from orchestration.core import CacheStatus, Call, Delta, Event, Finish, Handler, Kind, Price, Request, Start, Usage
from orchestration.core.errors import BackendError, LimitReached
from tests.gateway.limits.ledgers import NOON, Ledger
from tests.gateway.serving import CHAT, Script, ask, chat, parts_of, served

PRICE = Price(input_per_1m=1.0, output_per_1m=1000.0)
MODELS = {"m": ModelCost((PRICE,), max_tokens=100), "tiny": ModelCost((PRICE,), max_tokens=100)}
USAGE = Usage(prompt_tokens=5, completion_tokens=2)
COST = PRICE.cost_usd(USAGE)


@dataclass(frozen=True)
class TeamKey:
    limits: Limits
    team: str | None


@dataclass
class KeysOf:
    keys: dict[str, TeamKey] = field(default_factory=dict)

    def by_id(self, key_id: str) -> TeamKey | None:
        return self.keys.get(key_id)


@pytest.fixture
async def counters(store: RedisScripts) -> AsyncIterator[Counters]:
    opened = Counters(store, Ledger())
    yield opened
    await opened.aclose()


def layer_of(counters: Counters, default: Limits | None = None, **teams: Limits) -> LimitsLayer:
    keys = KeysOf({"mate": TeamKey(Limits(), "team"), "other": TeamKey(Limits(), "team")})
    rules = Rules(keys, default=default or Limits(), teams=teams)
    return LimitsLayer(counters, rules=rules, estimator=Estimator(MODELS))


def call_of(name: str, *, tenant: str = "a", **fields: object) -> Call:
    all_fields = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], **fields}
    request = Request(kind=Kind.CHAT, dialect="openai_chat", fields=MappingProxyType(dict(all_fields)))
    return Call(id=name, request_id=name, tenant=tenant, request=request, received_at=NOON, started=0.0)


async def priced(call: Call, /) -> AsyncGenerator[Event, None]:
    """Answer two tokens and note their cost, as the router does."""
    yield Start("m", "b")
    yield Delta(text="Hi")
    call.notes.cost_usd = COST
    yield Finish(usage=USAGE)


async def cached(call: Call, /) -> AsyncGenerator[Event, None]:
    call.notes.cache.status = CacheStatus.EXACT
    yield Start("m", "b")
    yield Delta(text="Hi")
    yield Finish(usage=USAGE)


async def drain(layer: LimitsLayer, call: Call, handler: Handler = priced) -> list[Event]:
    async with aclosing(layer(call, handler)) as events:
        return [event async for event in events]


async def spent(store: RedisScripts, name: str = "key:a") -> tuple[int, int, int, int]:
    """Read slots, settled and reserved money, tokens."""
    script = "return {redis.call('ZCARD', KEYS[1] .. ':s'), redis.call('HMGET', KEYS[1], 'spent', 'held', 't')}"
    slots, values = await store.run(script, [f"lamina:l:{name}"], [])
    settled, reserved, tokens = (int(value or 0) for value in values)
    return slots, settled, reserved, tokens


async def test_a_caller_without_limits_costs_no_round_trip(counters: Counters) -> None:
    call = call_of("1")
    handler_made = priced(call)
    counters._store = None  # type: ignore[assignment]  # whoever asks it fails

    assert layer_of(counters)(call, lambda _: handler_made) is handler_made
    await handler_made.aclose()


async def test_an_answer_is_charged_what_it_cost(counters: Counters, store: RedisScripts) -> None:
    limits = Limits(rpm=10, tpm=1000, parallel=2, budget_usd=1)

    await drain(layer_of(counters, limits), call_of("1"))

    assert await spent(store) == (0, round(COST * NANO_PER_USD), 0, USAGE.total_tokens)


async def test_the_call_is_settled_before_its_end_is_handed_on(counters: Counters) -> None:
    layer = layer_of(counters, Limits(parallel=1))
    async with aclosing(layer(call_of("1"), priced)) as events:
        async for event in events:
            if isinstance(event, Finish):
                break
        assert len(await drain(layer, call_of("2"))) == 3


async def test_hits_count_as_requests_alone(counters: Counters, store: RedisScripts) -> None:
    layer = layer_of(counters, Limits(rpm=2, tpm=1000, budget_usd=1))

    await drain(layer, call_of("1"), cached)
    await drain(layer, call_of("2"), cached)

    assert await spent(store) == (0, 0, 0, 0)
    with pytest.raises(LimitReached):
        await drain(layer, call_of("3"), cached)


@pytest.mark.parametrize("num_events", [0, 1, 2, 3])
async def test_a_client_that_leaves_releases_once_in_every_phase(
    counters: Counters, store: RedisScripts, num_events: int
) -> None:
    layer = layer_of(counters, Limits(parallel=1, tpm=10_000, budget_usd=1))
    call = call_of("1")
    async with aclosing(layer(call, priced)) as events:
        for _ in range(num_events):
            await anext(events)

    slots, settled, reserved, _ = await spent(store)

    assert (slots, reserved, counters.num_in_flight) == (0, 0, 0)
    assert (settled > 0) == (num_events >= 2)
    assert len(await drain(layer, call_of("2"))) == 3


async def test_an_answer_that_breaks_off_is_charged_a_guess_that_the_log_shares(
    counters: Counters, store: RedisScripts
) -> None:
    call = call_of("1", max_tokens=50)
    async with aclosing(layer_of(counters, Limits(budget_usd=1))(call, priced)) as events:
        await anext(events)
        await anext(events)

    _, settled, _, _ = await spent(store)

    assert call.notes.cost_usd is not None
    assert settled == pytest.approx(call.notes.cost_usd * NANO_PER_USD, abs=1)
    assert call.notes.extra["cost_is_estimated"]


async def test_a_backend_that_fails_costs_nothing(counters: Counters, store: RedisScripts) -> None:
    async def failing(_: Call, /) -> AsyncGenerator[Event, None]:
        raise BackendError("no")
        yield Start("m", "b")

    with pytest.raises(BackendError):
        await drain(layer_of(counters, Limits(parallel=1, tpm=100, budget_usd=1)), call_of("1"), failing)

    assert await spent(store) == (0, 0, 0, 0)


async def test_a_task_that_is_cancelled_while_it_waits_releases(counters: Counters, store: RedisScripts) -> None:
    begun = asyncio.Event()

    async def waiting(_: Call, /) -> AsyncGenerator[Event, None]:
        begun.set()
        await asyncio.Event().wait()
        yield Start("m", "b")

    task = asyncio.create_task(drain(layer_of(counters, Limits(parallel=1, budget_usd=1)), call_of("1"), waiting))
    async with asyncio.timeout(30):
        await begun.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert await spent(store) == (0, 0, 0, 0)


async def test_without_max_tokens_the_models_longest_answer_is_reserved(counters: Counters) -> None:
    layer = layer_of(counters, Limits(budget_usd=0.05))  # 100 tokens at 1,000 USD a million are 0.1
    told = r"could cost 0\.1\d* USD, and 0\.05 USD are left of your budget of 0\.05 USD per 1d"

    with pytest.raises(BudgetExceeded, match=told):
        await drain(layer, call_of("1"))
    assert len(await drain(layer, call_of("2", max_tokens=40))) == 3


async def test_a_team_shares_what_it_has(counters: Counters) -> None:
    layer = layer_of(counters, team=Limits(rpm=2))
    await drain(layer, call_of("1", tenant="mate"))
    await drain(layer, call_of("2", tenant="other"))

    with pytest.raises(LimitReached, match="your team's limit is 2 requests per minute"):
        await drain(layer, call_of("3", tenant="mate"))
    assert len(await drain(layer, call_of("4", tenant="stranger"))) == 3


async def test_without_the_store_a_budget_is_refused_and_the_others_go_on() -> None:
    store = RedisScripts("unix:///nowhere/valkey.sock")
    counters = Counters(store, Ledger())
    call = call_of("1")

    with pytest.raises(LimitsUnavailable) as caught:
        await drain(layer_of(counters, Limits(budget_usd=1)), call_of("0"))
    events = await drain(layer_of(counters, Limits(rpm=1, parallel=1)), call)

    assert caught.value.status == 503
    assert caught.value.retry_after_s
    assert len(events) == 3
    assert call.notes.degraded == ["limits_down"]
    await counters.aclose()


async def test_clients_read_their_limits_and_when_to_come_back(counters: Counters) -> None:
    layer = layer_of(counters, Limits(rpm=1, tpm=5000))
    script = Script()

    async with served(parts_of(lambda call: layer(call, script))) as port:
        first = await ask(port, CHAT, chat())
        second = await ask(port, CHAT, chat(stream=True))

    assert [reply.status for reply in (first, second)] == [200, 429]
    assert first.headers["x-ratelimit-limit-requests"] == "1"
    assert first.headers["x-ratelimit-remaining-requests"] == "0"
    assert first.headers["x-ratelimit-limit-tokens"] == "5000"
    assert first.headers["x-ratelimit-reset-requests"].endswith("s")
    assert second.headers["x-ratelimit-remaining-requests"] == "0"
    assert 50_000 < int(second.headers["retry-after-ms"]) <= 61_000
    assert (second.error["type"], second.error["code"]) == ("rate_limit_error", "rate_limit_exceeded")


async def test_a_spent_budget_tells_clients_not_to_try_again(counters: Counters) -> None:
    layer = layer_of(counters, Limits(budget_usd=0.001))

    async with served(parts_of(lambda call: layer(call, Script()))) as port:
        reply = await ask(port, CHAT, chat())

    assert reply.status == 429
    assert (reply.error["type"], reply.error["code"]) == ("insufficient_quota", "budget_exceeded")
    assert reply.headers["x-should-retry"] == "false"
    assert "retry-after-ms" not in reply.headers
