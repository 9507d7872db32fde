"""What is invalidated is served no more: through both layers, over a real Valkey, whatever is on its way meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import pytest

from cache.catalogue import Catalogue, Wanted
from cache.catalogue_watch import CatalogueWatch
from cache.exact import ExactCache
from cache.redis_store import RedisStore
from cache.script import Row
from cache.semantic import SemanticCache
from orchestration.core import CacheStatus, Call, Controls, Event, Handler, compose
from tests.cache.scripted import PARIS, PATIENT, Scripted, text_of
from tests.cache.test_semantic import FRANCE, WHATS, TableIndex, a_question

NOTE = {"by": "test"}


class Index(TableIndex):
    """An index from which rows can be taken out."""

    async def remove_rows(self, rows: Sequence[Row]) -> int:
        before = len(self.rows)
        self.rows = [row for row in self.rows if (row[0], row[2]) not in set(rows)]
        return before - len(self.rows)


@dataclass
class World:
    """One worker's caches over the store."""

    store: RedisStore
    catalogue: Catalogue
    watch: CatalogueWatch
    index: Index
    exact: ExactCache
    semantic: SemanticCache
    core: Scripted

    async def ask(self, text: str, id: str, *, tags: tuple[str, ...] = ("docs",)) -> Call:
        call = tagged(text, id, tags)
        assert text_of([event async for event in self.handler()(call)]) == text_of(PARIS)
        await self.semantic.aclose()
        return call

    def handler(self) -> Handler:
        return compose([self.exact, self.semantic], self.core)


def tagged(text: str, id: str, tags: tuple[str, ...]) -> Call:
    call = a_question(text, id)
    return Call(call.id, call.request_id, call.tenant, call.request, 0.0, 0.0, controls=Controls(tags=tags))


@pytest.fixture
async def world(valkey_url: str) -> AsyncIterator[World]:
    store, catalogue, index = RedisStore(valkey_url, timeout_s=60.0), Catalogue(valkey_url, timeout_s=60.0), Index()
    watch = CatalogueWatch(catalogue, index, rows_out=store.rows_out)
    exact = ExactCache(
        store, ttl_s=60, route_of=str, policy_of=lambda call: "", is_last_tier=False, ledger=watch, bounds=PATIENT
    )
    watch.on_cut = exact.close_flights
    semantic = SemanticCache(
        index, store, route_of=str, policy_of=lambda call: "", deadline_ms=20_000, ttl_s=60, ledger=watch
    )
    await watch.turn()
    yield World(store, catalogue, watch, index, exact, semantic, Scripted())
    await exact.aclose()
    await semantic.aclose()
    await store.aclose()
    await catalogue.aclose()


async def test_an_answer_on_its_way_when_its_tag_is_invalidated_reaches_its_caller_and_is_kept_by_neither_tier(
    world: World,
) -> None:
    gate = world.core.hold_at(1)
    asking = asyncio.create_task(world.ask(FRANCE, "c1"))
    await world.core.reached[1].wait()

    await world.catalogue.invalidate(Wanted(tag="docs"), note=NOTE)
    gate.set()
    call = await asking
    world.core.gates.clear()
    again = await world.ask(FRANCE, "c2")

    assert call.notes.cache.store_reason == "invalidated"
    assert again.notes.cache.status is CacheStatus.MISS
    assert len(world.core.calls) == 2


async def test_an_answer_on_its_way_is_kept_where_something_else_was_invalidated(world: World) -> None:
    gate = world.core.hold_at(1)
    asking = asyncio.create_task(world.ask(FRANCE, "c1"))
    await world.core.reached[1].wait()

    await world.catalogue.invalidate(Wanted(tag="weather"), note=NOTE)
    gate.set()
    await asking

    assert (await world.ask(FRANCE, "c2")).notes.cache.status is CacheStatus.EXACT
    assert (await world.ask(WHATS, "c3")).notes.cache.status is CacheStatus.SEMANTIC


async def test_nobody_joins_an_answer_that_was_on_its_way_when_an_invalidation_is_heard(world: World) -> None:
    gate = world.core.hold_at(1)
    asking = asyncio.create_task(world.ask(FRANCE, "c1"))
    await world.core.reached[1].wait()
    await world.catalogue.invalidate(Wanted(tag="docs"), note=NOTE)

    await world.watch.turn()
    late = asyncio.create_task(world.ask(FRANCE, "c2"))
    while len(world.core.calls) < 2:  # noqa: ASYNC110 (it asks for itself)
        await asyncio.sleep(0.005)
    gate.set()
    await asyncio.gather(asking, late)

    assert (await world.ask(FRANCE, "c3")).notes.cache.entry_call == "c2"


# GPTCache 548: no way to correct a wrong cached answer, so that it is not hit again.
async def test_an_answer_that_is_removed_by_its_id_is_found_by_neither_tier(world: World) -> None:
    await world.ask(FRANCE, "c1")
    hit = await world.ask(FRANCE, "c2")
    assert hit.notes.cache.entry is not None

    taken = await world.catalogue.remove(hit.notes.cache.entry, note=NOTE)

    assert taken is not None
    assert taken.count == 2
    assert (await world.ask(WHATS, "c3")).notes.cache.status is CacheStatus.MISS
    assert (await world.ask(FRANCE, "c4")).notes.cache.entry_call == "c3"


# GPTCache PR 448: vector store and row store drift apart, and a wrong answer is served.
async def test_a_row_whose_answer_is_gone_serves_nothing_and_is_taken_out(world: World) -> None:
    await world.ask(FRANCE, "c1")
    [row] = world.index.rows
    await world.store.delete(f"semantic:{row[2]}")
    world.store.rows_out.clear()  # as if whoever deleted it had died before it told anybody

    missed = tagged(WHATS, "c2", ())
    events: list[Event] = [event async for event in world.handler()(missed)]
    await world.semantic.aclose()
    world.index.rows = [one for one in world.index.rows if one[2] == row[2]]  # what c2 stored is not at issue
    await world.watch.turn()

    assert text_of(events) == text_of(PARIS)
    assert missed.notes.cache.status is CacheStatus.MISS
    assert world.index.rows == []


async def test_an_index_that_is_away_when_entries_are_invalidated_serves_none_of_them(world: World) -> None:
    await world.ask(FRANCE, "c1")

    taken = await world.catalogue.invalidate(Wanted(tag="docs"), note=NOTE)  # and nobody tells the index

    assert taken.count == 2
    assert len(world.index.rows) == 1
    assert (await world.ask(WHATS, "c2")).notes.cache.status is CacheStatus.MISS


async def test_hits_of_both_tiers_are_counted_for_their_entries(world: World) -> None:
    await world.ask(FRANCE, "c1")
    await world.ask(FRANCE, "c2")
    await world.ask(WHATS, "c3")
    await world.ask(WHATS, "c4")

    await world.watch.turn()

    counts = await world.catalogue.counts()
    assert (counts["hits_exact"], counts["hits_semantic"]) == (1, 2)
    assert counts["saved_usd"] == pytest.approx(0.75)
