from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from cache.memory_store import MemoryStore
from cache.redis_store import RedisStore
from cache.store import Store, StoreDown
from tests.cache.own_valkey import OwnValkey


@pytest.fixture(params=["memory", "valkey"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
        return
    redis_store = RedisStore(request.getfixturevalue("valkey_url"), timeout_s=60.0)
    yield redis_store
    await redis_store.aclose()


async def test_a_value_comes_back_byte_for_byte(store: Store) -> None:
    value = bytes(range(256)) * 4096

    await store.put("key", value, ttl_s=60.0)

    assert await store.get("key") == value


async def test_an_unknown_key_has_no_value(store: Store) -> None:
    assert await store.get("nobody") is None


async def test_the_latest_value_counts(store: Store) -> None:
    await store.put("key", b"old", ttl_s=60.0)
    await store.put("key", b"", ttl_s=60.0)

    assert await store.get("key") == b""


async def test_a_deleted_value_is_gone_and_may_be_deleted_again(store: Store) -> None:
    await store.put("key", b"value", ttl_s=60.0)
    await store.delete("key")
    await store.delete("key")

    assert await store.get("key") is None


async def test_keys_are_told_apart_whatever_they_hold(store: Store) -> None:
    keys = ["a", "A", "a ", "a\r\nb", "ä", "a:b", "*"]
    for key in keys:
        await store.put(key, key.encode(), ttl_s=60.0)

    assert [await store.get(key) for key in keys] == [key.encode() for key in keys]


async def test_a_cancelled_read_never_gives_its_answer_to_another_key(store: Store) -> None:
    values = {f"key{i}": f"value{i}".encode() * 1000 for i in range(20)}
    for key, value in values.items():
        await store.put(key, value, ttl_s=60.0)
    chance = random.Random(7)

    async def read(key: str) -> None:
        try:
            async with asyncio.timeout(chance.choice([0.0, 0.0005, 0.002, 20.0])):
                assert await store.get(key) == values[key]
        except TimeoutError:
            pass

    for _ in range(10):
        async with asyncio.TaskGroup() as tasks:
            for key in values:
                tasks.create_task(read(key))

    assert {key: await store.get(key) for key in values} == values


async def test_a_cancelled_command_ends_as_cancelled_wherever_it_stands(store: Store) -> None:
    for num_steps in range(30):
        task = asyncio.create_task(store.get("key"))
        for _ in range(num_steps):
            await asyncio.sleep(0)
        is_too_late = task.done()

        task.cancel()
        await asyncio.wait({task}, timeout=30.0)

        assert task.cancelled() or is_too_late


async def test_time_to_live_ends_a_value_in_memory_and_reading_does_not_prolong_it() -> None:
    now = 0.0
    store = MemoryStore(clock=lambda: now)
    await store.put("key", b"value", ttl_s=10.0)

    now = 9.9
    assert await store.get("key") == b"value"
    now = 10.0
    assert await store.get("key") is None


async def test_the_least_recently_used_value_leaves_memory_first() -> None:
    store = MemoryStore(max_entries=2)
    for key in ("a", "b"):
        await store.put(key, b"value", ttl_s=60.0)
    await store.get("a")
    await store.put("c", b"value", ttl_s=60.0)

    assert [await store.get(key) is not None for key in "abc"] == [True, False, True]


async def test_every_value_on_the_server_has_an_end_that_reading_does_not_prolong(valkey_url: str) -> None:
    store = RedisStore(valkey_url, timeout_s=60.0)
    await store.put("key", b"value", ttl_s=0.0004)
    await store.put("long", b"value", ttl_s=3600.0)

    async with Redis.from_url(valkey_url) as raw:
        await raw.pexpire("lamina:x:long", 1_800_000)
        await store.get("long")
        assert 0 < await raw.pttl("lamina:x:long") <= 1_800_000
        assert [key async for key in raw.scan_iter("*")] in ([b"lamina:x:long"], [b"lamina:x:key", b"lamina:x:long"])
    await store.aclose()


async def test_a_lease_has_one_holder_until_it_is_given_back(valkey_url: str) -> None:
    one, other = RedisStore(valkey_url, timeout_s=60.0), RedisStore(valkey_url, timeout_s=60.0)

    token = await one.acquire("key", ttl_s=60.0)
    assert token is not None
    assert await other.acquire("key", ttl_s=60.0) is None
    await other.release("key", "another's token")
    assert await other.acquire("key", ttl_s=60.0) is None
    await one.release("key", token)
    assert await other.acquire("key", ttl_s=60.0) is not None
    await one.aclose()
    await other.aclose()


async def test_a_killed_server_is_down_and_a_new_one_is_found(short_folder: Path) -> None:
    with OwnValkey(short_folder) as own_valkey:
        await _kill_and_restart(own_valkey)


async def _kill_and_restart(own_valkey: OwnValkey) -> None:
    store = RedisStore(own_valkey.url, timeout_s=30.0)
    await own_valkey.wait_until_healthy(store)
    await asyncio.gather(*(store.put(f"key{i}", b"value", ttl_s=60.0) for i in range(20)))

    own_valkey.kill()
    for command in (
        store.get("key1"),
        store.put("key", b"", ttl_s=1.0),
        store.delete("key"),
        store.release("key", "t"),
    ):
        with pytest.raises(StoreDown, match=r"own\.sock does not answer"):
            await command
    with pytest.raises(StoreDown):
        await store.acquire("key", ttl_s=1.0)
    assert "does not answer" in (await store.check_health() or "")

    own_valkey.start()
    await own_valkey.wait_until_healthy(store)
    await asyncio.gather(*(store.put(f"key{i}", b"new", ttl_s=60.0) for i in range(20)))
    assert await store.get("key1") == b"new"
    await store.aclose()


@pytest.mark.parametrize(
    "url",
    [
        "redis://name:hunter2@127.0.0.1:1/0",
        "unix:///nowhere/valkey.sock?password=hunter2",
        "redis://:hunter2@127.0.0.1:1",
    ],
)
async def test_an_unreachable_store_is_named_without_its_password(url: str) -> None:
    store = RedisStore(url)

    with pytest.raises(StoreDown) as caught:
        await store.get("key")

    assert "hunter2" not in f"{caught.value} {store!r} {await store.check_health()}"
    assert "127.0.0.1:1" in str(caught.value) or "/nowhere/valkey.sock" in str(caught.value)
    await store.aclose()


async def test_a_wrong_password_is_a_store_that_is_down(valkey_url: str) -> None:
    store = RedisStore(f"{valkey_url}?password=hunter2")

    with pytest.raises(StoreDown, match="does not answer") as caught:
        await store.get("key")

    assert "hunter2" not in str(caught.value)
    await store.aclose()


@pytest.mark.parametrize("url", ["http://localhost", "/run/valkey.sock", "", "localhost:6379"])
def test_a_url_of_another_scheme_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="begins with redis://"):
        RedisStore(url)
