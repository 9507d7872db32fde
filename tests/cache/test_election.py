from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from cache.exact import ExactCache
from cache.redis_store import RedisStore
from cache.store import StoreDown
from orchestration.core import CacheStatus, Finish
from orchestration.core.errors import BackendUnavailable
from tests.cache.scripted import PARIS, PATIENT, Scripted, a_call, an_exact_cache, answer, text_of


@pytest.fixture
async def stores(valkey_url: str) -> AsyncIterator[list[RedisStore]]:
    stores = [RedisStore(valkey_url, timeout_s=60.0) for _ in range(2)]
    yield stores
    for store in stores:
        await store.aclose()


def a_worker(store: RedisStore, *, lease_wait_s: float = 30.0) -> ExactCache:
    return an_exact_cache(store, leases=store, bounds=replace(PATIENT, lease_wait_s=lease_wait_s))


async def test_equal_calls_of_two_workers_are_bought_once(stores: list[RedisStore]) -> None:
    workers, cores = [a_worker(store) for store in stores], [Scripted(), Scripted()]
    gate = cores[0].hold_at(2)
    leader, others = a_call("c0"), [a_call(f"c{i}") for i in range(1, 9)]
    first = asyncio.create_task(answer(workers[0], cores[0], leader))
    await cores[0].reached[2].wait()
    tasks = [asyncio.create_task(answer(workers[i % 2], cores[i % 2], call)) for i, call in enumerate(others)]
    gate.set()

    answers = await asyncio.gather(first, *tasks)

    assert {text_of(events) for events in answers} == {"The capital is Paris."}
    assert len(cores[0].calls) + len(cores[1].calls) == 1
    assert leader.notes.cache.status is CacheStatus.MISS
    for call in others:
        assert (call.notes.cache.status, call.notes.cache.entry_call) == (CacheStatus.EXACT, "c0")
        assert call.notes.backend == "echo"
    for worker in workers:
        await worker.aclose()


async def test_a_burst_over_two_workers_is_bought_once(stores: list[RedisStore]) -> None:
    workers, cores = [a_worker(store) for store in stores], [Scripted(), Scripted()]

    await asyncio.gather(*(answer(workers[i % 2], cores[i % 2], a_call(f"c{i}")) for i in range(40)))

    assert len(cores[0].calls) + len(cores[1].calls) == 1
    for worker in workers:
        await worker.aclose()


async def test_an_answer_that_is_not_kept_is_bought_by_each_worker(stores: list[RedisStore]) -> None:
    cut = (*PARIS[:-1], Finish({0: "length"}))
    workers, cores = [a_worker(store) for store in stores], [Scripted(cut), Scripted(cut)]

    await asyncio.gather(*(answer(workers[i % 2], cores[i % 2], a_call(f"c{i}")) for i in range(10)))

    assert [len(core.calls) for core in cores] == [1, 1]
    for worker in workers:
        await worker.aclose()


async def test_a_holder_that_never_answers_is_waited_for_a_bounded_time(stores: list[RedisStore]) -> None:
    worker, core, call = a_worker(stores[0], lease_wait_s=0.1), Scripted(), a_call()
    key = await _key_of(worker, core)
    assert await stores[1].acquire(key, ttl_s=60.0)

    assert await answer(worker, core, call) == list(PARIS)

    assert call.notes.cache.status is CacheStatus.MISS
    assert call.notes.cache.was_stored
    await worker.aclose()


async def test_the_lease_is_given_back_after_an_answer_an_error_and_a_client_that_left(
    stores: list[RedisStore],
) -> None:
    worker, core = a_worker(stores[0]), Scripted((*PARIS[:2], BackendUnavailable("gone")))
    call = a_call()
    with pytest.raises(BackendUnavailable):
        await answer(worker, core, call)
    await worker.aclose()
    assert call.notes.cache.key
    token = await stores[1].acquire(call.notes.cache.key, ttl_s=60.0)
    assert token is not None
    await stores[1].release(call.notes.cache.key, token)

    core.hold_at(1)
    task = asyncio.create_task(answer(worker, core, a_call()))
    await core.reached[1].wait()
    assert await stores[1].acquire(call.notes.cache.key, ttl_s=60.0) is None
    task.cancel()
    await asyncio.wait({task})
    await worker.aclose()

    assert await stores[1].acquire(call.notes.cache.key, ttl_s=60.0) is not None


async def test_without_leases_that_answer_everybody_asks_for_itself() -> None:
    class Dead:
        async def acquire(self, key: str, *, ttl_s: float) -> str | None:
            raise StoreDown("no server")

        async def release(self, key: str, token: str) -> None:
            raise StoreDown("no server")

    worker, core = an_exact_cache(leases=Dead()), Scripted()

    assert await answer(worker, core, a_call()) == list(PARIS)


async def test_a_client_that_leaves_while_it_waits_for_the_lease_leaves_nothing_behind(
    stores: list[RedisStore],
) -> None:
    worker, core, call = a_worker(stores[0]), Scripted(), a_call()
    key = await _key_of(worker, core)
    await stores[1].acquire(key, ttl_s=60.0)
    for num_steps in range(40):
        task = asyncio.create_task(answer(worker, core, call))
        for _ in range(num_steps):
            await asyncio.sleep(0)

        task.cancel()
        await asyncio.wait({task}, timeout=30.0)

        assert task.cancelled()
    await worker.aclose()
    assert len(core.calls) == 1, "the one that told the key"
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def _key_of(worker: ExactCache, core: Scripted) -> str:
    """Learn the key of `a_call()` from a call whose answer is not kept."""
    core.events, kept = (*PARIS[:-1], Finish({0: "length"})), core.events
    call = a_call()
    await answer(worker, core, call)
    await worker.aclose()
    core.events = kept
    assert call.notes.cache.key is not None
    return call.notes.cache.key
