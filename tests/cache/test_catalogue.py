"""Entries as a whole on a real Valkey: listed, counted, bounded, and invalidated however a store races with it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from cache.card import Card, Invalidated
from cache.catalogue import Catalogue, Wanted
from cache.catalogue_watch import CatalogueWatch
from cache.redis_store import CATALOGUE_PREFIX, RedisStore
from cache.store import StoreFull
from cache.worth import PRICE_POWER, Bounds, plus, score

NOTE: dict[str, Any] = {"by": "test"}


def a_card(id: str = "id", **changes: Any) -> Card:
    card = Card(
        id=id,
        kind="exact",
        call=f"call-{id}",
        tenant="ann",
        model="alias",
        real_model="real",
        tags=("docs", "v1"),
        epoch=0,
        worth_usd=0.5,
        saves_usd=0.5,
    )
    return replace(card, **changes)


def a_semantic_card(id: str, **changes: Any) -> Card:
    return a_card(id, kind="semantic", partition="p1", **changes)


@pytest.fixture
async def store(valkey_url: str) -> AsyncIterator[RedisStore]:
    store = RedisStore(valkey_url, timeout_s=60.0)
    yield store
    await store.aclose()


@pytest.fixture
async def catalogue(valkey_url: str) -> AsyncIterator[Catalogue]:
    catalogue = Catalogue(valkey_url, timeout_s=60.0)
    yield catalogue
    await catalogue.aclose()


async def lists_of(url: str) -> dict[str, int]:
    """Count the members of everything that lists entries."""
    found = {}
    async with Redis.from_url(url, decode_responses=True) as raw:
        async for key in raw.scan_iter(f"{CATALOGUE_PREFIX}*"):
            name = key.removeprefix(CATALOGUE_PREFIX)
            if name.startswith("by:") or name in ("all", "value"):
                found[name] = await raw.zcard(key)
            if name == "size":
                found[name] = await raw.hlen(key)
    return found


async def test_a_kept_entry_is_found_by_its_id_with_all_that_it_is_listed_by(
    store: RedisStore, catalogue: Catalogue
) -> None:
    await store.put("key1", b"value", ttl_s=60.0, card=a_card("id1"))

    entry = await catalogue.find("id1")
    assert entry is not None
    assert (entry.key, entry.tenant, entry.model, entry.real_model) == ("key1", "ann", "alias", "real")
    assert (entry.tags, entry.size_bytes, entry.hits) == (("docs", "v1"), 5, 0)
    assert entry.ends_at - entry.created_at == pytest.approx(60.0)
    assert await catalogue.answer(replace(entry, kind="semantic")) is None  # no entry of ours
    assert await catalogue.find("nobody") is None


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        (Wanted(tag="docs"), {"b"}),
        (Wanted(tenant="bob"), {"a", "c"}),
        (Wanted(model="alias"), {"c"}),
        (Wanted(model="other"), {"a", "b"}),
        (Wanted(model="real"), set()),
        (Wanted(tag="docs", tenant="ann", model="alias"), {"b", "c"}),
        (Wanted(tag="docs", tenant="bob"), {"a", "b", "c"}),
        (Wanted(tag="nobody"), {"a", "b", "c"}),
        (Wanted(), set()),
    ],
)
async def test_what_has_all_of_it_in_common_is_gone_and_nothing_else(
    store: RedisStore, catalogue: Catalogue, wanted: Wanted, left: set[str]
) -> None:
    await store.put("a", b"1", ttl_s=60.0, card=a_card("a"))
    await store.put("b", b"1", ttl_s=60.0, card=a_semantic_card("b", tags=(), tenant="bob"))
    await store.put("c", b"1", ttl_s=60.0, card=a_card("c", model="other"))

    taken = await catalogue.invalidate(wanted, note=NOTE)

    assert {key for key in "abc" if await store.get(key) is not None} == left
    assert taken.count == 3 - len(left)
    assert taken.rows == ((("p1", "b"),) if "b" not in left else ())
    assert {entry.key for entry in await catalogue.page(Wanted(), limit=10, offset=0)} == left


async def test_nothing_stays_in_any_list_of_an_entry_that_is_taken_out(
    store: RedisStore, catalogue: Catalogue, valkey_url: str
) -> None:
    for number in range(30):
        await store.put(f"k{number}", b"1", ttl_s=60.0, card=a_card(f"id{number}", tags=(f"t{number % 3}", "all")))

    await catalogue.invalidate(Wanted(tag="all"), note=NOTE)

    assert await lists_of(valkey_url) == {}


async def test_an_entry_whose_time_is_over_leaves_every_list(
    store: RedisStore, catalogue: Catalogue, valkey_url: str
) -> None:
    await asyncio.gather(*(store.put(f"k{n}", b"1", ttl_s=0.005, card=a_card(f"{n}")) for n in range(40)))
    await store.put(
        "lives", b"1", ttl_s=60.0, card=a_card("lives", tags=("x",), tenant="eve", model="m", real_model="m")
    )
    async with Redis.from_url(valkey_url) as raw, asyncio.timeout(60):
        while await raw.exists(*(f"lamina:x:k{n}" for n in range(40))):  # noqa: ASYNC110 (the server's own clock)
            await asyncio.sleep(0.005)

    await catalogue.sweep()

    one = {"all": 1, "value": 1, "size": 1, "by:tag:x": 1, "by:tenant:eve": 1, "by:model:m": 1}
    assert await lists_of(valkey_url) == one
    assert (await catalogue.totals()).whole.entries == 1


async def test_an_entry_that_the_server_dropped_leaves_the_lists_with_its_row(
    store: RedisStore, catalogue: Catalogue, valkey_url: str
) -> None:
    await store.put("semantic:a", b"1", ttl_s=60.0, card=a_semantic_card("a"))
    async with Redis.from_url(valkey_url) as raw:
        await raw.delete("lamina:x:semantic:a")

    assert await catalogue.sweep() == [("p1", "a")]
    assert await lists_of(valkey_url) == {}


async def test_a_store_that_was_under_way_when_its_tag_was_invalidated_is_refused(
    store: RedisStore, catalogue: Catalogue
) -> None:
    begun = await catalogue.count_hits({})

    await catalogue.invalidate(Wanted(tag="docs"), note=NOTE)

    with pytest.raises(Invalidated):
        await store.put("key", b"stale", ttl_s=60.0, card=a_card(epoch=begun))
    assert await store.get("key") is None
    await store.put("other", b"fine", ttl_s=60.0, card=a_card("other", tags=("else",), epoch=begun))
    await store.put("key", b"fresh", ttl_s=60.0, card=a_card(epoch=await catalogue.count_hits({})))
    assert await store.get("key") == b"fresh"


async def test_one_who_has_heard_of_no_invalidation_yet_is_held_to_all_of_them(
    store: RedisStore, catalogue: Catalogue
) -> None:
    await catalogue.invalidate(Wanted(tenant="ann"), note=NOTE)

    with pytest.raises(Invalidated):
        await store.put("key", b"stale", ttl_s=60.0, card=a_card(epoch=0))


async def test_one_who_was_away_for_longer_than_invalidations_are_kept_stores_nothing(
    store: RedisStore, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cache.catalogue._MAX_CUTS", 3)
    begun = await catalogue.count_hits({})
    for _ in range(5):
        await catalogue.invalidate(Wanted(tag="unrelated"), note=NOTE)

    with pytest.raises(Invalidated):
        await store.put("key", b"1", ttl_s=60.0, card=a_card(epoch=begun))


async def test_however_stores_and_an_invalidation_interleave_no_stale_answer_is_left(
    store: RedisStore, catalogue: Catalogue
) -> None:
    begun = await catalogue.count_hits({})
    refused = 0

    async def put(number: int) -> None:
        nonlocal refused
        try:
            await store.put(f"k{number}", b"stale", ttl_s=60.0, card=a_card(f"{number}", epoch=begun))
        except Invalidated:
            refused += 1

    async with asyncio.TaskGroup() as tasks:
        for number in range(300):
            tasks.create_task(put(number))
            if number == 150:
                tasks.create_task(catalogue.invalidate(Wanted(tag="docs"), note=NOTE))

    assert [number for number in range(300) if await store.get(f"k{number}") is not None] == []
    assert (await catalogue.counts()).get("refused", 0) == refused


async def test_removing_an_entry_takes_along_what_else_keeps_the_same_answer(
    store: RedisStore, catalogue: Catalogue
) -> None:
    await store.put("key", b"1", ttl_s=60.0, card=a_card("exact", call="c1"))
    await store.put("semantic:s", b"1", ttl_s=60.0, card=a_semantic_card("s", call="c1", twin="key"))
    await store.put("other", b"1", ttl_s=60.0, card=a_card("other", call="c2"))

    taken = await catalogue.remove("exact", note=NOTE)

    assert taken is not None
    assert (taken.count, taken.rows) == (2, (("p1", "s"),))
    assert [await store.get(key) is None for key in ("key", "semantic:s", "other")] == [True, True, False]
    assert await catalogue.remove("exact", note=NOTE) is None


async def test_a_semantic_insert_that_trails_a_removed_answer_is_refused(
    store: RedisStore, catalogue: Catalogue
) -> None:
    await store.put("key", b"1", ttl_s=60.0, card=a_card("exact", call="c1"))

    await catalogue.remove("exact", note=NOTE)

    with pytest.raises(Invalidated):
        await store.put("semantic:s", b"1", ttl_s=60.0, card=a_semantic_card("s", call="c1", twin="key"))


async def test_an_answer_in_anothers_place_takes_over_its_place_in_the_lists(
    store: RedisStore, catalogue: Catalogue, valkey_url: str
) -> None:
    await store.put("key", b"old", ttl_s=60.0, card=a_card("old", tags=("old",)))
    await store.put("key", b"newer", ttl_s=60.0, card=a_card("new", tags=("new",)))

    assert await catalogue.find("old") is None
    assert (await lists_of(valkey_url)).get("by:tag:old") is None
    assert (await catalogue.invalidate(Wanted(tag="old"), note=NOTE)).count == 0
    assert (await catalogue.totals()).whole.size_bytes == 5


async def test_hits_are_counted_by_entry_and_by_kind_with_what_they_saved(
    store: RedisStore, catalogue: Catalogue
) -> None:
    await store.put("a", b"1", ttl_s=60.0, card=a_card("a"))
    await store.put("semantic:b", b"1", ttl_s=60.0, card=a_semantic_card("b"))

    await catalogue.count_hits({"a": 3, "semantic:b": 1, "nobody": 7})

    totals, counts = await catalogue.totals(), await catalogue.counts()
    assert (totals.whole.hits, totals.whole.saved_usd, totals.by_kind["exact"].hits) == (4, 2.0, 3)
    assert (counts["hits_exact"], counts["hits_semantic"], counts["saved_usd"]) == (3, 1, 2.0)


def room(size_bytes: int) -> int:
    """Return what an entry of `a_card` takes, listed by tenant, two models and two tags."""
    return size_bytes + 700 + 5 * 170


@pytest.mark.parametrize("bounds", [Bounds(max_entries=10), Bounds(max_bytes=10 * room(10))])
async def test_beyond_the_bound_what_is_worth_least_per_byte_leaves(
    valkey_url: str, catalogue: Catalogue, bounds: Bounds
) -> None:
    store = RedisStore(valkey_url, timeout_s=60.0, bounds=bounds)
    for number in range(10):
        await store.put(f"k{number}", b"x" * 10, ttl_s=60.0, card=a_card(f"{number}", worth_usd=1.0 + number / 10))
    await catalogue.count_hits({"k0": 5})
    await store.put("semantic:dear", b"x" * 10, ttl_s=60.0, card=a_semantic_card("dear", worth_usd=9.0))
    await store.put("k1again", b"x" * 10, ttl_s=60.0, card=a_card("again", worth_usd=5.0))

    left = {entry.key for entry in await catalogue.page(Wanted(), limit=20, offset=0)}

    assert left == {"k0", *(f"k{number}" for number in range(3, 10)), "semantic:dear", "k1again"}
    assert (await catalogue.counts())["evicted"] == 2
    await store.aclose()


async def test_a_semantic_entry_that_made_room_has_its_row_taken_out(valkey_url: str) -> None:
    store = RedisStore(valkey_url, timeout_s=60.0, bounds=Bounds(max_entries=1))
    await store.put("semantic:a", b"1", ttl_s=60.0, card=a_semantic_card("a", worth_usd=0.001))
    await store.put("b", b"1", ttl_s=60.0, card=a_card("b"))

    assert list(store.rows_out) == [("p1", "a")]
    await store.aclose()


@given(
    uses=st.lists(
        st.tuples(st.floats(1e-9, 10.0), st.integers(1, 10**6), st.floats(0.0, 100.0)), min_size=1, max_size=6
    ),
    later=st.floats(100.0, 200.0),
)
def test_a_score_is_the_sum_of_uses_each_halved_by_its_age(uses: list[tuple[float, int, float]], later: float) -> None:
    scores = [score(worth_usd=worth, size_bytes=size, turns=at, half_life_turns=2.0) for worth, size, at in uses]

    total = scores[0]
    for one in scores[1:]:
        total = plus(total, one)

    by_hand = math.fsum(worth**PRICE_POWER / size * 2.0 ** ((at - later) / 2.0) for worth, size, at in uses)
    assert total - later / 2.0 == pytest.approx(math.log2(by_hand), abs=1e-6)


async def test_the_server_counts_worth_as_we_do(store: RedisStore, catalogue: Catalogue, valkey_url: str) -> None:
    await store.put("first", b"1", ttl_s=60.0, card=a_card("first"))
    await store.put("key", b"x" * 100, ttl_s=60.0, card=a_card(worth_usd=0.25))
    await store.put("third", b"1", ttl_s=60.0, card=a_card("third"))
    await catalogue.count_hits({"key": 3})

    async with Redis.from_url(valkey_url) as raw:
        found = await raw.zscore(f"{CATALOGUE_PREFIX}value", "key")
    stored = score(worth_usd=0.25, size_bytes=room(100), turns=1 + 1 / 2)
    hit = math.log2(3) + score(worth_usd=0.25, size_bytes=room(100), turns=1 + 1 / 2 + 1 / 3)
    assert found == pytest.approx(plus(stored, hit), abs=1e-6)


@pytest.fixture
async def full_valkey(valkey_url: str) -> AsyncIterator[str]:
    async with Redis.from_url(valkey_url) as raw:
        yield valkey_url
        await raw.config_set("maxmemory", "0")
        await raw.config_set("maxmemory-policy", "noeviction")


async def test_a_full_store_without_eviction_serves_and_invalidates_as_before(
    full_valkey: str, store: RedisStore, catalogue: Catalogue
) -> None:
    await store.put("semantic:a", b"1", ttl_s=60.0, card=a_semantic_card("a"))
    await store.put("b", b"1", ttl_s=60.0, card=a_card("b", tags=("kept",)))
    async with Redis.from_url(full_valkey) as raw:
        await raw.config_set("maxmemory", "1")

        with pytest.raises(StoreFull):
            await store.put("c", b"1", ttl_s=60.0, card=a_card("c"))
        assert await store.get("b") == b"1"
        await catalogue.count_hits({})
        await catalogue.sweep()
        assert (await catalogue.invalidate(Wanted(tag="docs"), note=NOTE)).count == 1
        await store.delete("b")

        assert (await store.get("semantic:a"), await store.get("b"), await store.get("c")) == (None, None, None)


async def test_a_store_that_drops_answers_for_want_of_room_keeps_what_invalidates_the_others(
    full_valkey: str, store: RedisStore, catalogue: Catalogue
) -> None:
    async with Redis.from_url(full_valkey) as raw:
        used = (await raw.info("memory"))["used_memory"]
        await raw.config_set("maxmemory-policy", "volatile-lru")
        await raw.config_set("maxmemory", str(used + 900_000))
        for number in range(500):
            await store.put(f"k{number}", b"x" * 3000, ttl_s=60.0, card=a_card(f"{number}"))
        left = [number for number in range(500) if await store.get(f"k{number}") is not None]
        assert 0 < len(left) < 500

        taken = await catalogue.invalidate(Wanted(tag="docs"), note=NOTE)

        assert 0 < taken.count <= len(left)  # the server drops some more meanwhile
        assert [number for number in range(500) if await store.get(f"k{number}") is not None] == []


async def test_a_store_that_drops_whatever_it_likes_breaks_nothing(
    full_valkey: str, store: RedisStore, catalogue: Catalogue
) -> None:
    async with Redis.from_url(full_valkey) as raw:
        used = (await raw.info("memory"))["used_memory"]
        await raw.config_set("maxmemory-policy", "allkeys-random")
        await raw.config_set("maxmemory", str(used + 300_000))
        for number in range(600):
            epoch = await catalogue.count_hits({f"k{number - 1}": 1})
            await store.put(f"k{number}", b"x" * 1000, ttl_s=60.0, card=a_card(f"{number}", epoch=epoch))
            if number % 50 == 0:
                await catalogue.sweep()

        assert (await raw.info("stats"))["evicted_keys"] > 0
        assert await catalogue.eviction_policy() == "allkeys-random"
        assert (await catalogue.totals()).whole.entries <= 600
        await catalogue.invalidate(Wanted(), note=NOTE)


class Rows:
    """An index that writes down what is taken out of it."""

    def __init__(self) -> None:
        self.removed: list[tuple[str, str]] = []

    async def remove_rows(self, rows: Any) -> int:
        self.removed.extend(rows)
        return len(rows)


async def test_every_worker_hears_of_an_invalidation_and_tells_its_hits(
    valkey_url: str, store: RedisStore, catalogue: Catalogue
) -> None:
    cuts, index = [], Rows()
    watch = CatalogueWatch(catalogue, index, on_cut=lambda: cuts.append(1))
    await store.put("a", b"1", ttl_s=60.0, card=a_card("a"))
    watch.hit("a")
    watch.hit("a")

    other = Catalogue(valkey_url, timeout_s=60.0)
    await other.invalidate(Wanted(tag="unrelated"), note=NOTE)
    await watch.turn()
    await watch.turn()

    assert len(cuts) == 1
    assert watch.epoch == (await other.invalidations())[0]["number"]
    assert (await other.totals()).whole.hits == 2
    await other.aclose()


async def test_a_row_is_taken_out_only_while_its_entry_has_no_answer(store: RedisStore, catalogue: Catalogue) -> None:
    index = Rows()
    watch = CatalogueWatch(catalogue, index)
    await store.put("semantic:back", b"1", ttl_s=60.0, card=a_semantic_card("back"))
    watch.is_gone("p1", "back")
    watch.is_gone("p1", "gone")

    await watch.turn()

    assert index.removed == [("p1", "gone")]
