from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

from gateway.limits.counters import Admitted, Refused
from gateway.limits.rules import NANO_PER_USD
from gateway.limits.store import RedisScripts
from tests.gateway.limits.caller_child import BUDGET_USD, NUM_CALLS, PARALLEL, PRICE
from tests.gateway.limits.ledgers import admit, counters_of, scope

NUM_PROCESSES = 4
STATE = "return {redis.call('ZCARD', KEYS[1] .. ':s'), redis.call('HMGET', KEYS[1], 'spent', 'held')}"


def start(url: str, mode: str, seed: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.gateway.limits.caller_child", url, mode, str(seed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def test_a_thousand_calls_of_four_processes_pass_neither_the_budget_nor_the_slots(
    store: RedisScripts, valkey_url: str
) -> None:
    children = [start(valkey_url, "spend", seed) for seed in range(NUM_PROCESSES)]
    reports = [json.loads(child.communicate(timeout=240)[0]) for child in children]

    slots, (spent, held) = await store.run(STATE, ["lamina:l:key:t"], [])

    def total(name: str) -> int:
        return sum(int(report[name]) for report in reports)

    budget = round(BUDGET_USD * NANO_PER_USD)
    cent = NANO_PER_USD // 100
    assert total("num_answered") + total("num_spent") == NUM_PROCESSES * NUM_CALLS
    assert max(report["peak"] for report in reports) <= PARALLEL
    assert total("num_waits") > 0
    assert budget - PARALLEL * cent < int(spent) <= budget
    assert int(spent) == round(total("num_tokens") * PRICE.output_per_1m * 1000)
    assert (slots, int(held)) == (0, 0)


async def test_a_killed_process_gives_its_slots_and_money_back_after_its_leases(
    store: RedisScripts, valkey_url: str
) -> None:
    limited = scope("key:t", parallel=PARALLEL, budget_usd=BUDGET_USD)
    counters = counters_of(store)
    child = start(valkey_url, "hold", 0)
    assert child.stdout is not None
    assert child.stdout.readline() == "holding\n"
    while_alive = await admit(counters, "early", limited)
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()

    deadline = time.monotonic() + 10.0
    decision = await admit(counters, "late", limited, cents=200)
    while isinstance(decision, Refused) and time.monotonic() < deadline:
        decision = await admit(counters, "late", limited, cents=200)

    assert isinstance(while_alive, Refused)
    assert isinstance(decision, Admitted)
    assert (await store.run(STATE, ["lamina:l:key:t"], []))[0] == 1
    await counters.aclose()
