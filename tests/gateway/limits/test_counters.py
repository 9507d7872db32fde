from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.limits import scripts
from gateway.limits.counters import Admitted, Refused
from gateway.limits.errors import StoreLost
from gateway.limits.store import RedisScripts
from tests.gateway.limits.ledgers import CENT, NOON, Ledger, admit, counters_of, scope


def refused_by(decision: Admitted | Refused) -> str:
    assert isinstance(decision, Refused)
    return f"{decision.scope.name} {decision.limit}"


async def held(store: RedisScripts, name: str = "key:a") -> dict[str, int]:
    """Read what the store holds for a scope: calls in flight, money spent and reserved, tokens."""
    script = "return {redis.call('ZCARD', KEYS[1] .. ':s'), redis.call('HMGET', KEYS[1], 'spent', 'held', 't')}"
    slots, (spent, reserved, tokens) = await store.run(script, [f"lamina:l:{name}"], [])
    return {"slots": slots, "spent": int(spent or 0), "held": int(reserved or 0), "tokens": int(tokens or 0)}


async def test_requests_stop_at_the_limit_and_say_when_to_come_back(store: RedisScripts) -> None:
    counters = counters_of(store)
    limited = scope(rpm=2)

    first, second, third = [await admit(counters, str(number), limited) for number in range(3)]

    assert isinstance(first, Admitted)
    assert isinstance(second, Admitted)
    assert [room.remaining_requests for room in (*first.rooms, *second.rooms, *third.rooms)] == [1, 0, 0]
    assert isinstance(third, Refused)
    assert refused_by(third) == "key:a rpm"
    assert 1.0 < third.wait_s <= 61.0  # a minute, less what the machine stood still
    assert not first.is_leased
    assert counters.num_in_flight == 0


async def test_tokens_are_reserved_and_then_corrected(store: RedisScripts) -> None:
    counters = counters_of(store)
    limited = scope(tpm=100)

    await admit(counters, "a", limited, tokens=80)
    too_many = await admit(counters, "b", limited, tokens=30)
    await counters.settle("a", tokens=10, nano_usd=0)
    enough = await admit(counters, "c", limited, tokens=90)

    assert refused_by(too_many) == "key:a tpm"
    assert isinstance(enough, Admitted)
    assert enough.rooms[0].remaining_tokens == 0
    await counters.aclose()


async def test_a_call_larger_than_the_whole_limit_runs_alone(store: RedisScripts) -> None:
    counters = counters_of(store)

    assert isinstance(await admit(counters, "a", scope(tpm=100), tokens=500), Admitted)
    assert refused_by(await admit(counters, "b", scope(tpm=100), tokens=1)) == "key:a tpm"
    await counters.aclose()


async def test_a_slot_is_free_again_once_its_call_is_settled(store: RedisScripts) -> None:
    counters = counters_of(store)
    limited = scope(parallel=1)

    await admit(counters, "a", limited)
    second = await admit(counters, "b", limited)
    await counters.settle("a", tokens=0, nano_usd=0)
    third = await admit(counters, "c", limited)

    assert isinstance(second, Refused)
    assert refused_by(second) == "key:a parallel"
    assert 0.05 <= second.wait_s <= 10.0
    assert isinstance(third, Admitted)
    await counters.aclose()


async def test_settling_twice_changes_nothing(store: RedisScripts) -> None:
    counters, other = counters_of(store), counters_of(store)
    limited = scope(parallel=2, budget_usd=1)
    await admit(counters, "a", limited, cents=10)
    other._in_flight = dict(counters._in_flight)

    await counters.settle("a", tokens=0, nano_usd=3 * CENT)
    await counters.settle("a", tokens=0, nano_usd=3 * CENT)
    await other.settle("a", tokens=0, nano_usd=3 * CENT)

    assert await held(store) == {"slots": 0, "spent": 3 * CENT, "held": 0, "tokens": 0}
    await counters.aclose()


async def test_money_is_reserved_then_settled(store: RedisScripts) -> None:
    counters = counters_of(store)
    limited = scope(budget_usd=0.10)

    await admit(counters, "a", limited, cents=6)
    too_dear = await admit(counters, "b", limited, cents=5)
    await counters.settle("a", tokens=0, nano_usd=2 * CENT)
    last = await admit(counters, "c", limited, cents=8)

    assert refused_by(too_dear) == "key:a budget"
    assert isinstance(too_dear, Refused)
    assert too_dear.left_nano_usd == 4 * CENT
    assert isinstance(last, Admitted)
    assert await held(store) == {"slots": 1, "spent": 2 * CENT, "held": 8 * CENT, "tokens": 0}
    await counters.aclose()


async def test_an_empty_store_begins_with_what_the_ledger_knows(store: RedisScripts) -> None:
    ledger = Ledger(key_a=0.07)
    counters = counters_of(store, ledger)
    limited = scope(budget_usd=0.10)

    many = await asyncio.gather(*(admit(counters, str(number), limited, cents=1) for number in range(10)))

    assert sum(isinstance(one, Admitted) for one in many) == 3
    assert ledger.asked == [("key:a", NOON - NOON % 86400)]
    await counters.aclose()


async def test_without_the_ledger_no_budget_can_be_held(store: RedisScripts) -> None:
    ledger = Ledger()
    ledger.is_down = True
    counters = counters_of(store, ledger)

    with pytest.raises(StoreLost):
        await admit(counters, "a", scope(budget_usd=1))
    assert isinstance(await admit(counters, "b", scope(rpm=1)), Admitted)


async def test_a_new_window_begins_empty_and_an_old_call_settles_into_its_own(store: RedisScripts) -> None:
    counters = counters_of(store)
    limited = scope(budget_usd=0.10, window="1h")

    await admit(counters, "old", limited, cents=10)
    full = await admit(counters, "more", limited, cents=1)
    new = await admit(counters, "new", limited, cents=10, now=NOON + 3600)
    await counters.settle("old", tokens=0, nano_usd=10 * CENT)

    assert refused_by(full) == "key:a budget"
    assert isinstance(new, Admitted)
    assert await held(store) == {"slots": 1, "spent": 0, "held": 10 * CENT, "tokens": 0}
    await counters.aclose()


async def test_a_clock_that_lags_behind_does_not_bring_the_last_window_back(store: RedisScripts) -> None:
    counters = counters_of(store)
    limited = scope(budget_usd=0.10, window="1h")

    await admit(counters, "new", limited, cents=10, now=NOON + 3600)

    assert refused_by(await admit(counters, "late", limited, cents=1, now=NOON)) == "key:a budget"
    await counters.aclose()


async def test_two_windows_of_a_key_and_its_team_are_counted_apart(store: RedisScripts) -> None:
    counters = counters_of(store)
    key, team = scope(budget_usd=0.10, window="1h"), scope("team:t", budget_usd=0.25, window="1d")

    decisions = []
    for hour in range(3):
        call_id = f"hour-{hour}"
        decisions.append(await admit(counters, call_id, key, team, cents=10, now=NOON + hour * 3600))
        await counters.settle(call_id, tokens=0, nano_usd=10 * CENT)

    assert isinstance(decisions[0], Admitted)
    assert isinstance(decisions[1], Admitted)
    assert refused_by(decisions[2]) == "team:t budget"
    assert (await held(store, "team:t"))["spent"] == 20 * CENT


async def test_a_refusal_by_the_team_leaves_nothing_behind_at_the_key(store: RedisScripts) -> None:
    counters = counters_of(store)
    team = scope("team:t", parallel=1)
    key = scope(rpm=5, tpm=50, parallel=5, budget_usd=1)
    await admit(counters, "first", team)

    refused = await admit(counters, "second", key, team, tokens=10, cents=1)

    assert refused_by(refused) == "team:t parallel"
    assert refused.rooms[0].remaining_requests == 5
    assert await held(store) == {"slots": 0, "spent": 0, "held": 0, "tokens": 0}
    await counters.aclose()


async def test_a_spent_budget_is_told_before_a_limit_that_passes(store: RedisScripts) -> None:
    counters = counters_of(store)
    limited = scope(rpm=1, budget_usd=0.01)

    await admit(counters, "a", limited, cents=1)

    assert refused_by(await admit(counters, "b", limited, cents=1)) == "key:a budget"
    await counters.aclose()


async def test_the_same_admission_sent_again_counts_once(store: RedisScripts) -> None:
    counters = counters_of(store)
    limited = scope(rpm=5, tpm=50, parallel=1, budget_usd=1)

    await admit(counters, "a", limited, tokens=10, cents=1)
    again = await admit(counters, "a", limited, tokens=10, cents=1)

    assert isinstance(again, Admitted)
    assert again.rooms[0].remaining_requests == 4
    assert await held(store) == {"slots": 1, "spent": 0, "held": CENT, "tokens": 10}
    await counters.aclose()


async def test_a_caller_that_leaves_while_being_let_in_holds_nothing(store: RedisScripts) -> None:
    counters = counters_of(store)
    limited = scope(parallel=1, budget_usd=1)
    for number in range(20):
        leaving = asyncio.create_task(admit(counters, str(number), limited, cents=1))
        for _ in range(number % 7):
            await asyncio.sleep(0)
        leaving.cancel()
        (result,) = await asyncio.gather(leaving, return_exceptions=True)
        if isinstance(result, Admitted):  # it was in before it left, and so it has to settle
            await counters.settle(str(number), tokens=0, nano_usd=0)

    await counters.aclose()

    assert counters.num_in_flight == 0
    assert (await held(store))["slots"] == 0
    assert (await held(store))["held"] == 0


async def test_leases_are_renewed_while_their_calls_run(store: RedisScripts) -> None:
    counters = counters_of(store, lease_s=0.6)
    read_end = "return redis.call('ZSCORE', KEYS[1], 'a')"
    await admit(counters, "a", scope(parallel=1))
    begun = float(await store.run(read_end, ["lamina:l:key:a:s"], []))

    async with asyncio.timeout(30):
        end = begun
        while end < begun + 600:
            end = float(await store.run(read_end, ["lamina:l:key:a:s"], []))

    await counters.aclose()


async def test_what_nobody_renews_is_free_after_its_lease_and_its_late_cost_counts_once(store: RedisScripts) -> None:
    stalled, other = counters_of(store, lease_s=0.05), counters_of(store)
    limited = scope(parallel=1, budget_usd=1)
    await admit(stalled, "a", limited, cents=10)
    assert stalled._renewing is not None
    stalled._renewing.cancel()

    while isinstance(await admit(other, "b", limited, cents=10), Refused):
        pass
    for _ in range(2):
        await stalled.settle("a", tokens=0, nano_usd=2 * CENT)

    assert await held(store) == {"slots": 1, "spent": 2 * CENT, "held": 10 * CENT, "tokens": 0}
    await other.aclose()


async def test_a_store_that_lost_its_data_learns_of_the_calls_in_flight(store: RedisScripts) -> None:
    ledger = Ledger()
    counters = counters_of(store, ledger)
    limited = scope(parallel=1, budget_usd=0.10)
    await admit(counters, "a", limited, cents=10)
    await store.run("return redis.call('FLUSHALL')", [], [])

    await counters._renew()

    assert refused_by(await admit(counters, "b", limited, cents=1)) == "key:a budget"
    await counters.settle("a", tokens=0, nano_usd=CENT)
    assert await held(store) == {"slots": 0, "spent": CENT, "held": 0, "tokens": 0}


async def test_a_renewal_that_meets_a_settlement_neither_loses_its_cost_nor_keeps_its_slot(store: RedisScripts) -> None:
    counters = counters_of(store)
    await admit(counters, "a", scope(parallel=1, budget_usd=1), cents=10)
    counters._store = gates = _Gates(store)

    renewal = asyncio.create_task(counters._renew())
    await gates.reached(scripts.RENEW)
    settlement = asyncio.create_task(counters.settle("a", tokens=0, nano_usd=3 * CENT))
    await gates.reached(scripts.SETTLE)
    for script in (scripts.RENEW, scripts.ABANDON, scripts.SETTLE):
        gates.open(script)
    await asyncio.gather(renewal, settlement)

    assert gates.ran == [scripts.RENEW, scripts.SETTLE, scripts.ABANDON]
    assert await held(store) == {"slots": 0, "spent": 3 * CENT, "held": 0, "tokens": 0}
    counters._store = store
    await counters.aclose()


async def test_a_settlement_that_the_store_could_not_take_is_made_up_for(store: RedisScripts) -> None:
    counters = counters_of(store)
    await admit(counters, "a", scope(parallel=1, budget_usd=1), cents=10)
    counters._store = _Away()

    await counters.settle("a", tokens=0, nano_usd=3 * CENT)

    assert counters.num_in_flight == 1
    counters._store = store
    await counters.aclose()
    assert counters.num_in_flight == 0
    assert await held(store) == {"slots": 0, "spent": 3 * CENT, "held": 0, "tokens": 0}


async def test_scopes_out_of_use_are_deleted(store: RedisScripts) -> None:
    counters = counters_of(store)
    for name in ("key:x", "key:y"):
        await admit(counters, name, scope(name, rpm=5))
    age = "for _, base in ipairs({'lamina:l:key:x', 'lamina:l:key:y'}) do redis.call('ZADD', KEYS[1], 1, base) end"
    await store.run(age, ["lamina:l:scopes"], [])

    await admit(counters, "z", scope("key:z", rpm=5))

    assert sorted(await store.run("return redis.call('KEYS', '*')", [], [])) == [b"lamina:l:key:z", b"lamina:l:scopes"]


class _Gates:
    """A store where each script waits until its gate is open."""

    def __init__(self, store: RedisScripts) -> None:
        self._store = store
        self._reached: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._open: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.ran: list[str] = []

    async def reached(self, script: str) -> None:
        await self._reached[script].wait()

    def open(self, script: str) -> None:
        self._open[script].set()

    async def run(self, script: str, keys: Sequence[str], arguments: Sequence[str | int]) -> Any:
        self._reached[script].set()
        await self._open[script].wait()
        self.ran.append(script)
        return await self._store.run(script, keys, arguments)


class _Away:
    async def run(self, *_: object) -> None:
        raise StoreLost("away")


async def test_a_settlement_whose_caller_leaves_is_done_all_the_same(store: RedisScripts) -> None:
    counters = counters_of(store)
    await admit(counters, "a", scope(parallel=1, budget_usd=1), cents=10)

    counters._store = gates = _Gates(store)
    settling = asyncio.create_task(counters.settle("a", tokens=0, nano_usd=3 * CENT))
    await gates.reached(scripts.SETTLE)
    settling.cancel()
    await asyncio.wait([settling])
    gates.open(scripts.SETTLE)
    await counters.aclose()

    assert settling.cancelled()
    assert await held(store) == {"slots": 0, "spent": 3 * CENT, "held": 0, "tokens": 0}
