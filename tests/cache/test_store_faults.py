"""Faults of other caches' stores and indexes that were reported in public, asked of ours: the real encoder, the real
index, a real Valkey, both layers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from cache.catalogue import Catalogue, Wanted
from cache.catalogue_watch import CatalogueWatch
from cache.encoder import Encoder
from cache.exact import ExactCache
from cache.index import Row as IndexRow
from cache.partitions import Partitions
from cache.redis_store import RedisStore
from cache.script import Row
from cache.semantic import Found, SemanticCache
from orchestration.core import CacheStatus, Call, Controls, Delta, Finish, Start, compose
from tests.cache.scripted import FINISH, PATIENT, Clock, Scripted, text_of
from tests.cache.test_semantic import a_question

FRANCE, WHATS = "What is the capital of France?", "What's the capital of France?"


class EncoderIndex:
    """Our encoder and our index, without a process around them."""

    def __init__(self, encoder: Encoder, clock: Clock) -> None:
        self.partitions = Partitions(encoder.dim, clock=clock)
        self._encoder = encoder
        self._clock = clock

    async def search(self, partition: str, text: str, *, top_k: int, timeout_s: float) -> Found:
        found = self.partitions.search(partition, self._vector(text), top_k)
        return Found(found, embedder=self._encoder.revision, generation=self.partitions.generation)

    async def add(self, partition: str, text: str, entry: str, *, ttl_s: float) -> None:
        self.partitions.add(partition, IndexRow(entry, self._vector(text), self._clock() + ttl_s))

    async def remove_rows(self, rows: Sequence[Row]) -> int:
        return sum(self.partitions.remove(partition, entry) for partition, entry in rows)

    def _vector(self, text: str) -> NDArray[np.float32]:
        vector: NDArray[np.float32] = self._encoder.encode(self._encoder.tokenize([text]))[0]
        return vector


@dataclass
class World:
    """Both caches; the model's answer names the question that it answers."""

    catalogue: Catalogue
    watch: CatalogueWatch
    exact: ExactCache
    semantic: SemanticCache
    index: EncoderIndex
    clock: Clock

    async def ask(self, text: str, *, is_streamed: bool = False, tags: tuple[str, ...] = ()) -> tuple[str, CacheStatus]:
        call = a_question(text, "c")
        request = call.request.with_fields(stream=True) if is_streamed else call.request
        call = Call(call.id, call.request_id, call.tenant, request, 0.0, 0.0, controls=Controls(tags=tags))
        core = Scripted((Start("m", "echo"), Delta(text="It is about: "), Delta(text=text), FINISH))
        events = [event async for event in compose([self.exact, self.semantic], core)(call)]
        await self.semantic.aclose()
        assert isinstance(events[-1], Finish)
        return text_of(events).removeprefix("It is about: "), call.notes.cache.status


@pytest.fixture
async def world(valkey_url: str, encoder: Encoder) -> AsyncIterator[World]:
    store, catalogue, clock = RedisStore(valkey_url, timeout_s=60.0), Catalogue(valkey_url, timeout_s=60.0), Clock()
    index = EncoderIndex(encoder, clock)
    watch = CatalogueWatch(catalogue, index, rows_out=store.rows_out)
    exact = ExactCache(
        store, ttl_s=60, route_of=str, policy_of=str_of, is_last_tier=False, ledger=watch, bounds=PATIENT, now=clock
    )
    semantic = SemanticCache(
        index, store, route_of=str, policy_of=str_of, deadline_ms=20_000, ttl_s=60, ledger=watch, clock=clock
    )
    yield World(catalogue, watch, exact, semantic, index, clock)
    await exact.aclose()
    await store.aclose()
    await catalogue.aclose()


def str_of(call: Call) -> str:
    return ""


# GPTCache 379: the server returns the first stored item for any prompt. LiteLLM 12234: all questions map to one entry.
async def test_each_question_gets_its_own_answer_whatever_was_stored_first(world: World) -> None:
    texts = ["hello world", "bye", "What is 1+1?", "Tell me one joke", FRANCE]
    for text in texts:
        assert await world.ask(text) == (text, CacheStatus.MISS)

    assert [await world.ask(text) for text in texts] == [(text, CacheStatus.EXACT) for text in texts]


# LiteLLM 31610: a semantic hit works once, then misses.
async def test_a_semantic_hit_is_one_every_time(world: World) -> None:
    await world.ask(FRANCE)

    assert [await world.ask(WHATS) for _ in range(5)] == [(FRANCE, CacheStatus.SEMANTIC)] * 5


# semantic-router 1555, 913: streamed answers are never stored, or replayed as broken events.
@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_streamed_answer_is_kept_and_serves_streams_and_others_in_both_tiers(
    world: World, is_streamed: bool
) -> None:
    assert (await world.ask(FRANCE, is_streamed=is_streamed))[1] is CacheStatus.MISS

    for text, status in ((FRANCE, CacheStatus.EXACT), (WHATS, CacheStatus.SEMANTIC)):
        assert [await world.ask(text, is_streamed=one) for one in (True, False)] == [(FRANCE, status)] * 2


# camel-ai PR 3790: after a delete or a replacement a search returns another entry's answer, as row numbers moved.
async def test_after_deletes_and_replacements_every_question_still_finds_its_own_answer(world: World) -> None:
    texts = [f"What is the boiling point of {name}?" for name in ("water", "lead", "iron", "gold", "tin", "zinc")]
    for number, text in enumerate(texts):
        await world.ask(text, tags=("odd",) if number % 2 else ())

    taken = await world.catalogue.invalidate(Wanted(tag="odd"), note={})
    await world.watch.remove_rows(taken.rows)
    for partition in world.index.partitions.names():
        world.index.partitions.sweep([partition])

    for number, text in enumerate(texts):
        answer, status = await world.ask(text.replace("What is", "What's"))
        assert answer in (text, text.replace("What is", "What's"))
        assert (status is CacheStatus.SEMANTIC) == (number % 2 == 0)


# RedisVL: every check refreshes the time to live of all matches, so that a popular wrong entry never dies.
async def test_hits_never_lengthen_an_entrys_life(world: World) -> None:
    await world.ask(FRANCE)
    for _ in range(5):
        world.clock.now += 11.0
        assert (await world.ask(FRANCE))[1] is CacheStatus.EXACT
        assert (await world.ask(WHATS))[1] is CacheStatus.SEMANTIC

    world.clock.now += 11.0

    assert (await world.ask(WHATS))[1] is CacheStatus.MISS


# RedisVL 407, langchain-redis 22 and 98, semantic-router 2715: distances taken for similarities, scales mixed up.
async def test_the_same_words_have_a_similarity_of_one_and_unlike_ones_a_low_one(world: World) -> None:
    await world.index.add("p", FRANCE, "e", ttl_s=60)

    same = await world.index.search("p", FRANCE, top_k=1, timeout_s=1)
    other = await world.index.search("p", "Tell me one joke", top_k=1, timeout_s=1)

    assert same.candidates[0].similarity == pytest.approx(1.0, abs=1e-3)
    assert other.candidates[0].similarity < 0.3


# GPTCache 527: the model is not part of the key. instructor 2585, OrcaRouter 84: nor temperature, nor max_tokens.
@pytest.mark.parametrize("changed", [{"model": "another"}, {"temperature": 0.1}, {"seed": 7}, {"max_tokens": 16}])
async def test_a_call_that_differs_in_what_changes_an_answer_gets_its_own(
    world: World, changed: dict[str, object]
) -> None:
    await world.ask(FRANCE)
    call = a_question(FRANCE, "other")
    call = replace(call, request=call.request.with_fields(**changed))

    events = [event async for event in compose([world.exact, world.semantic], Scripted())(call)]
    await world.semantic.aclose()

    assert call.notes.cache.status is CacheStatus.MISS
    assert text_of(events) == "The capital is Paris."
