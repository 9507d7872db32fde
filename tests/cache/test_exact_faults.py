from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cache.card import Card
from cache.entry import CODEC_VERSION
from cache.exact import ExactBounds
from cache.redis_store import RedisStore
from cache.store import StoreDown
from orchestration.core import CacheStatus, Delta, Finish, Part, Start
from tests.cache.own_valkey import OwnValkey
from tests.cache.scripted import PARIS, Scripted, a_call, an_exact_cache, answer, text_of


class Broken:
    """A store that fails, hangs, or gives what it should not."""

    def __init__(self) -> None:
        self.get_error: Exception | None = None
        self.put_error: Exception | None = None
        self.hangs = False
        self.num_asked = 0
        self.value: bytes | None = None
        self.kept: dict[str, bytes] = {}

    async def get(self, key: str) -> bytes | None:
        self.num_asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.get_error is not None:
            raise self.get_error
        return self.value if self.value is not None else self.kept.get(key)

    async def put(self, key: str, value: bytes, *, ttl_s: float, card: Card | None = None) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.put_error is not None:
            raise self.put_error
        self.kept[key] = value

    async def delete(self, key: str) -> None:
        self.kept.pop(key, None)


async def test_a_store_that_is_down_is_a_miss_and_soon_costs_nothing() -> None:
    store = Broken()
    store.get_error = store.put_error = StoreDown("no server")
    layer, core = an_exact_cache(store), Scripted()

    for _ in range(10):
        call = a_call()
        assert await answer(layer, core, call) == list(PARIS)
        assert (call.notes.cache.status, call.notes.cache.reason) == (CacheStatus.MISS, "store_down")
        assert call.notes.degraded == ["exact_cache_down"]
        assert call.notes.cache.store_reason == "store_down"

    assert store.num_asked < 4


async def test_a_slow_store_is_a_miss_within_the_deadline_and_the_answer_is_whole() -> None:
    store = Broken()
    store.hangs = True
    layer, core = an_exact_cache(store, bounds=ExactBounds()), Scripted()
    call = a_call()

    assert await answer(layer, core, call) == list(PARIS)

    assert call.notes.cache.reason == call.notes.cache.store_reason == "store_slow"
    assert call.notes.degraded == ["exact_cache_slow"]


async def test_a_slow_write_is_skipped_and_recorded() -> None:
    store = Broken()
    layer, core = an_exact_cache(store, bounds=ExactBounds(lookup_timeout_s=60.0)), Scripted()
    gate = core.hold_at(3)
    call = a_call()
    task = asyncio.create_task(answer(layer, core, call))
    await core.reached[3].wait()
    store.hangs = True
    gate.set()

    assert await task == list(PARIS)

    assert (call.notes.cache.was_stored, call.notes.cache.store_reason) == (False, "store_slow")


@pytest.mark.parametrize("value", [b"", b"noise", b"\x00" * 200])
async def test_what_the_store_gives_and_cannot_be_read_is_a_miss(value: bytes) -> None:
    store = Broken()
    store.value = value
    layer, core = an_exact_cache(store), Scripted()
    call = a_call()

    assert await answer(layer, core, call) == list(PARIS)

    assert (call.notes.cache.status, call.notes.cache.reason) == (CacheStatus.MISS, "unreadable")


async def test_an_entry_of_another_codec_version_is_a_miss_and_is_replaced() -> None:
    store = Broken()
    layer, core = an_exact_cache(store), Scripted()
    await answer(layer, core, a_call())
    (key,) = store.kept
    old = bytearray(store.kept[key])
    old[32 + 2] = CODEC_VERSION + 1
    store.kept[key] = bytes(old)

    await answer(layer, core, a_call())

    assert len(core.calls) == 2
    assert store.kept[key][32 + 2] == CODEC_VERSION


async def test_another_keys_value_is_never_served_even_if_the_store_mixes_them_up() -> None:
    store = Broken()
    layer, core = an_exact_cache(store), Scripted()
    await answer(layer, core, a_call(tenant="team-a"))
    (store.value,) = store.kept.values()
    call = a_call(tenant="team-b")

    await answer(layer, core, call)

    assert call.notes.cache.reason == "unreadable"
    assert len(core.calls) == 2


async def test_an_answer_that_cannot_be_packed_is_passed_on_and_not_kept() -> None:
    payload = Delta(part=Part.PAYLOAD, data=2**80)
    layer, core = an_exact_cache(), Scripted((Start("m", "b"), payload, Finish()))
    call = a_call()

    assert payload in await answer(layer, core, call)

    assert call.notes.cache.store_reason == "unpackable"


async def test_a_large_answer_is_kept_too() -> None:
    text = "".join(chr(97 + i * 7919 % 26) for i in range(300_000))
    layer, core = an_exact_cache(), Scripted((Start("m", "b"), Delta(text=text), Finish()))
    await answer(layer, core, a_call())

    assert text_of(await answer(layer, core, a_call(stream=True))) == text
    assert len(core.calls) == 1


@pytest.mark.parametrize(
    ("fail", "recover"),
    [(OwnValkey.kill, OwnValkey.start), (OwnValkey.freeze, OwnValkey.thaw)],
    ids=["killed", "frozen"],
)
async def test_a_store_that_fails_costs_answers_nothing_and_is_found_again_by_itself(
    short_folder: Path, fail: Callable[[OwnValkey], None], recover: Callable[[OwnValkey], None]
) -> None:
    with OwnValkey(short_folder) as server:
        store = RedisStore(server.url, timeout_s=0.25)
        await server.wait_until_healthy(store)
        layer, core = an_exact_cache(store, bounds=ExactBounds()), Scripted()
        fail(server)

        for _ in range(10):
            call = a_call()
            assert await answer(layer, core, call) == list(PARIS)
            assert call.notes.degraded
            assert call.notes.cache.status is CacheStatus.MISS

        recover(server)
        deadline = time.monotonic() + 60.0
        while call.notes.cache.status is not CacheStatus.EXACT:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
            call = a_call()
            assert text_of(await answer(layer, core, call)) == "The capital is Paris."
        await layer.aclose()
        await store.aclose()
