"""A process that calls through the layer: `python -m tests.gateway.limits.caller_child URL MODE SEED`.

MODE `spend`: 250 calls at once, each tried again until it is answered or the budget is spent; prints one JSON line.
MODE `hold`: one call that is let in and never ends; prints a line once it is in.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing

from redis.asyncio import Redis

from gateway.limits.counters import Counters
from gateway.limits.errors import BudgetExceeded
from gateway.limits.estimate import Estimator, ModelCost
from gateway.limits.layer import LimitsLayer
from gateway.limits.rules import Limits, Rules
from gateway.limits.store import RedisScripts
from orchestration.core import Call, Delta, Event, Finish, Kind, Price, Request, Start, Usage
from orchestration.core.errors import LimitReached
from tests.gateway.limits.ledgers import NOON, Ledger

NUM_CALLS = 250
PARALLEL = 20
BUDGET_USD = 2.0
MAX_TOKENS = 100
PRICE = Price(output_per_1m=100.0)  # the longest answer costs a cent
INSIDE = "test:inside"


class Caller:
    """Make calls whose handler counts, by means of its own, how many are inside at once."""

    def __init__(self, url: str, *, seed: int, lease_s: float) -> None:
        self.store = RedisScripts(url, timeout_s=60.0)
        self.counters = Counters(self.store, Ledger(), lease_s=lease_s)
        limits = Limits(parallel=PARALLEL, budget_usd=BUDGET_USD)
        rules = Rules(None, default=limits, teams={})
        estimator = Estimator({"m": ModelCost((PRICE,), max_tokens=MAX_TOKENS)})
        self.layer = LimitsLayer(self.counters, rules=rules, estimator=estimator)
        self.random = random.Random(seed)
        self.redis = Redis.from_url(url, socket_timeout=60.0)
        self.seed = seed
        self.peak = self.num_tokens = self.num_answered = self.num_spent = self.num_waits = 0

    async def handler(self, call: Call, /) -> AsyncGenerator[Event, None]:
        """Answer a part of the longest answer, a little later; a few clients are gone by then."""
        inside = await self.redis.incr(INSIDE)
        try:
            self.peak = max(self.peak, inside)
            await asyncio.sleep(self.random.uniform(0, 0.004))
            usage = Usage(completion_tokens=self.random.randint(10, MAX_TOKENS))
            self.num_tokens += usage.completion_tokens
            call.notes.cost_usd = PRICE.cost_usd(usage)
            yield Start("m", "b")
            yield Delta(text="x")
        finally:
            await self.redis.decr(INSIDE)
        yield Finish(usage=usage)

    async def call(self, number: int) -> None:
        """Call until there is an answer or no money."""
        fields = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        for attempt in range(100_000):
            name = f"{self.seed}-{number}-{attempt}"
            request = Request(kind=Kind.CHAT, dialect="openai_chat", fields=fields)
            call = Call(id=name, request_id=name, tenant="t", request=request, received_at=NOON, started=0.0)
            try:
                async with aclosing(self.layer(call, self.handler)) as events:
                    async for event in events:
                        if isinstance(event, Delta) and number % 10 == 0:
                            break  # this client leaves
                self.num_answered += 1
                return
            except BudgetExceeded:
                self.num_spent += 1
                return
            except LimitReached:
                self.num_waits += 1
                await asyncio.sleep(self.random.uniform(0.05, 0.3))


async def spend(url: str, seed: int) -> None:
    """Make all calls at once and say how it went."""
    caller = Caller(url, seed=seed, lease_s=6.0)  # so that renewals meet settlements
    await asyncio.gather(*(caller.call(number) for number in range(NUM_CALLS)))
    await caller.counters.aclose()
    names = ("peak", "num_tokens", "num_answered", "num_spent", "num_waits")
    sys.stdout.write(json.dumps({name: getattr(caller, name) for name in names}) + "\n")
    await caller.store.aclose()
    await caller.redis.aclose()


async def hold(url: str, seed: int) -> None:
    """Be let in as often as there are slots, and never end."""
    caller = Caller(url, seed=seed, lease_s=0.4)
    begun = asyncio.Semaphore(0)

    async def forever(_: Call, /) -> AsyncGenerator[Event, None]:
        begun.release()
        await asyncio.Event().wait()
        yield Start("m", "b")

    caller.handler = forever  # type: ignore[method-assign]  # this child's calls are to hang
    async with asyncio.TaskGroup() as group:
        for number in range(PARALLEL):
            group.create_task(caller.call(number))
        for _ in range(PARALLEL):
            await begun.acquire()
        sys.stdout.write("holding\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run({"spend": spend, "hold": hold}[sys.argv[2]](sys.argv[1], int(sys.argv[3])))
