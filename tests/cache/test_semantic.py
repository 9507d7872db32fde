from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from cache.card import Card
from cache.context import MultiTurn
from cache.decide import decide
from cache.entry import dump, load
from cache.examiner import Examiner
from cache.guard import GUARD_VERSION, load_guard
from cache.memory_store import MemoryStore
from cache.policies.calibrated import CalibratedPolicy, chance_of
from cache.policies.scorer import load_model
from cache.policies.static import StaticPolicy
from cache.semantic import Found, IndexFault, SemanticCache
from cache.store import Store, StoreDown
from orchestration.core import CacheControl, CacheStatus, Call, Candidate, Delta, Event, Finish, Start, compose
from orchestration.core.errors import BackendError, CacheMissed
from tests.cache.scripted import FINISH, PARIS, Clock, Scripted, a_call, text_of

FRANCE, WHATS, GERMANY = "capital of France?", "what's the capital of France?", "capital of Germany?"
COSINES = {frozenset({FRANCE, WHATS}): 0.99, frozenset({FRANCE, GERMANY}): 0.66, frozenset({WHATS, GERMANY}): 0.64}


@dataclass
class TableIndex:
    """An index whose cosines are a table; `fault` makes it fail, `gate` makes it wait."""

    rows: list[tuple[str, str, str]] = field(default_factory=list)
    fault: IndexFault | None = None
    gate: asyncio.Event | None = None
    num_searches: int = 0
    cosines: Mapping[frozenset[str], float] = field(default_factory=lambda: COSINES)

    async def search(self, partition: str, text: str, *, top_k: int, timeout_s: float) -> Found:
        self.num_searches += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        near = [
            Candidate(entry, 1.0 if known == text else self.cosines[frozenset({known, text})])
            for place, known, entry in self.rows
            if place == partition
        ]
        ranked = sorted(near, key=lambda candidate: -candidate.similarity)[:top_k]
        return Found(tuple(ranked), embedder="table@1", generation=len(self.rows))

    async def add(self, partition: str, text: str, entry: str, *, ttl_s: float) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        self.rows = [row for row in self.rows if row[2] != entry] + [(partition, text, entry)]


def a_cache(
    index: TableIndex,
    store: Store,
    *,
    clock: Clock | None = None,
    deadline_ms: float = 20_000,
    examiner: Examiner | None = None,
) -> SemanticCache:
    return SemanticCache(
        index,
        store,
        route_of=lambda alias: "route",
        policy_of=lambda call: "policy",
        examiner=examiner,
        ttl_s=3600.0,
        deadline_ms=deadline_ms,
        clock=clock or Clock(),
    )


def a_question(text: str, id: str = "c1", **more: Any) -> Call:
    return a_call(id, messages=[{"role": "user", "content": text}], **{"temperature": 0, **more})


async def ask(cache: SemanticCache, core: Scripted, call: Call) -> list[Event]:
    events = [event async for event in compose([cache], core)(call)]
    await cache.aclose()
    return events


async def test_a_paraphrase_gets_the_answer_and_the_notes_say_why() -> None:
    clock, index, core = Clock(), TableIndex(), Scripted()
    cache = a_cache(index, MemoryStore(), clock=clock)
    first, second = a_question(FRANCE, "first"), a_question(WHATS, "second")
    await ask(cache, core, first)
    clock.now += 60

    events = await ask(cache, core, second)

    assert [call.id for call in core.calls] == ["first"]
    assert text_of(events) == "The capital is Paris."
    assert isinstance(events[0], Start)
    assert isinstance(events[-1], Finish)
    note = second.notes.cache
    assert note.status is CacheStatus.SEMANTIC
    assert (note.similarity, note.threshold, note.policy) == (0.99, 0.95, "static")
    assert (note.entry_call, note.entry_created_at) == ("first", clock.now - 60)
    assert note.candidates == [Candidate(str(note.entry), 0.99)]
    assert (note.embedder, note.index_generation) == ("table@1", 1)
    assert note.partition == first.notes.cache.partition
    assert (second.notes.model, second.notes.backend, second.notes.cost_usd) == ("real-model", "echo", 0.0)


async def test_a_question_below_the_bar_is_a_miss_whose_candidates_are_kept() -> None:
    index, core = TableIndex(), Scripted()
    cache = a_cache(index, MemoryStore())
    await ask(cache, core, a_question(FRANCE))

    call = a_question(GERMANY)
    await ask(cache, core, call)

    assert len(core.calls) == 2
    assert call.notes.cache.status is CacheStatus.MISS
    assert [candidate.similarity for candidate in call.notes.cache.candidates] == [0.66]
    assert call.notes.extra["semantic"] == "below_bar"


@pytest.mark.parametrize("change", [{"tenant": "t2"}, {"namespace": "n"}, {"temperature": 0.2}, {"max_tokens": 9}])
async def test_another_partition_never_hits(change: dict[str, Any]) -> None:
    core = Scripted()
    cache = a_cache(TableIndex(), MemoryStore())
    await ask(cache, core, a_question(FRANCE))

    await ask(cache, core, a_question(FRANCE, **change))

    assert len(core.calls) == 2


@pytest.mark.parametrize(("floor", "is_hit"), [(None, True), (0.5, True), (0.99, True), (0.995, False)])
async def test_a_request_can_raise_the_bar_and_never_lower_it(floor: float | None, is_hit: bool) -> None:
    core = Scripted()
    cache = a_cache(TableIndex(), MemoryStore())
    await ask(cache, core, a_question(FRANCE))

    call = a_question(WHATS, threshold=floor)
    await ask(cache, core, call)

    assert (call.notes.cache.status is CacheStatus.SEMANTIC) == is_hit
    assert call.notes.cache.threshold == max(0.95, floor or 0.0)


async def test_an_ineligible_call_is_neither_looked_up_nor_kept() -> None:
    index, core = TableIndex(), Scripted()
    call = a_question(FRANCE, temperature=1.0)

    await ask(a_cache(index, MemoryStore()), core, call)

    assert index.num_searches == 0
    assert index.rows == []
    assert call.notes.extra["semantic"] == "temperature"


async def test_no_cache_is_not_looked_up_and_refreshes_the_entry() -> None:
    index, core, store = TableIndex(), Scripted(), MemoryStore()
    cache = a_cache(index, store)
    await ask(cache, core, a_question(FRANCE, "first"))

    await ask(cache, core, a_question(FRANCE, "second", cache=CacheControl(is_no_cache=True)))

    assert index.num_searches == 1
    [(_, _, entry)] = index.rows
    packed = await store.get(f"semantic:{entry}")
    assert packed is not None
    assert load(packed).call_id == "second"


async def test_no_store_leaves_nothing_behind() -> None:
    index = TableIndex()

    await ask(a_cache(index, MemoryStore()), Scripted(), a_question(FRANCE, cache=CacheControl(is_no_store=True)))

    assert index.rows == []


async def test_only_if_cached_is_refused_on_a_miss_and_answered_on_a_hit() -> None:
    core = Scripted()
    cache = a_cache(TableIndex(), MemoryStore())
    only = CacheControl(is_only_if_cached=True)
    with pytest.raises(CacheMissed):
        await ask(cache, core, a_question(WHATS, cache=only))
    with pytest.raises(CacheMissed):
        await ask(cache, core, a_question(WHATS, temperature=1.0, cache=only))
    await ask(cache, core, a_question(FRANCE))

    events = await ask(cache, core, a_question(WHATS, cache=only))

    assert text_of(events) == "The capital is Paris."
    assert len(core.calls) == 1


@pytest.mark.parametrize(("max_age_s", "is_hit"), [(60.0, True), (59.0, False), (0.0, False)])
async def test_an_entry_older_than_max_age_does_not_serve(max_age_s: float, is_hit: bool) -> None:
    clock, core = Clock(), Scripted()
    cache = a_cache(TableIndex(), MemoryStore(), clock=clock)
    await ask(cache, core, a_question(FRANCE))
    clock.now += 60

    call = a_question(WHATS, cache=CacheControl(max_age_s=max_age_s))
    await ask(cache, core, call)

    assert (call.notes.cache.status is CacheStatus.SEMANTIC) == is_hit
    assert is_hit or "too_old" in call.notes.extra["semantic_unusable"].values()


async def test_an_entry_that_vanished_gives_way_to_the_next_candidate() -> None:
    index, core, store = TableIndex(), Scripted(), MemoryStore()
    cache = a_cache(index, store)
    await ask(cache, core, a_question(FRANCE, "first"))
    await ask(cache, core, a_question(WHATS, "second", cache=CacheControl(is_no_cache=True)))
    gone = next(entry for _, text, entry in index.rows if text == WHATS)
    await store.delete(f"semantic:{gone}")

    call = a_question(WHATS, "third")
    await ask(cache, core, call)

    assert call.notes.cache.status is CacheStatus.SEMANTIC
    assert call.notes.cache.entry_call == "first"
    assert call.notes.cache.similarity == 0.99
    assert call.notes.extra["semantic_unusable"] == {gone: "gone"}


async def test_damaged_bytes_are_a_miss() -> None:
    index, core, store = TableIndex(), Scripted(), MemoryStore()
    cache = a_cache(index, store)
    await ask(cache, core, a_question(FRANCE))
    await store.put(f"semantic:{index.rows[0][2]}", b"damaged", ttl_s=100)

    call = a_question(WHATS)
    await ask(cache, core, call)

    assert call.notes.cache.status is CacheStatus.MISS
    assert call.notes.extra["semantic"] == "unusable"


@pytest.mark.parametrize("code", ["down", "slow", "busy", "internal"])
async def test_an_index_that_fails_is_a_miss_that_is_told(code: str) -> None:
    core, call = Scripted(), a_question(FRANCE)

    events = await ask(a_cache(TableIndex(fault=IndexFault(code, "x")), MemoryStore()), core, call)

    assert text_of(events) == "The capital is Paris."
    assert call.notes.degraded == [f"semantic_cache_{code}"]


@pytest.mark.parametrize("code", ["too_long", "unreadable"])
async def test_a_text_that_the_model_cannot_read_is_a_miss_and_no_fault(code: str) -> None:
    core, call = Scripted(), a_question(FRANCE)

    await ask(a_cache(TableIndex(fault=IndexFault(code, "x")), MemoryStore()), core, call)

    assert call.notes.degraded == []
    assert (call.notes.extra["semantic"], call.notes.extra["semantic_insert"]) == (code, code)


async def test_an_index_that_does_not_answer_is_a_miss_at_the_deadline() -> None:
    core, call, index = Scripted(), a_question(FRANCE), TableIndex(gate=asyncio.Event())
    cache = a_cache(index, MemoryStore(), deadline_ms=5)

    events = [event async for event in compose([cache], core)(call)]

    assert index.gate is not None
    index.gate.set()
    await cache.aclose()
    assert text_of(events) == "The capital is Paris."
    assert call.notes.degraded == ["semantic_cache_slow"]


class DownStore:
    async def get(self, key: str) -> bytes | None:
        raise StoreDown("down")

    async def put(self, key: str, value: bytes, *, ttl_s: float, card: Card | None = None) -> None:
        raise StoreDown("down")

    async def delete(self, key: str) -> None:
        raise StoreDown("down")


async def test_a_store_that_is_down_is_a_miss_and_nothing_is_indexed() -> None:
    index, core, call = TableIndex(), Scripted(), a_question(FRANCE)

    await ask(a_cache(index, DownStore()), core, call)

    assert index.rows == []
    index.rows = [(str(call.notes.cache.partition), FRANCE, "e")]
    call = a_question(WHATS)
    await ask(a_cache(index, DownStore()), core, call)
    assert call.notes.degraded == ["semantic_cache_down"]


@pytest.mark.parametrize("events", [(*PARIS[:3], Finish({0: "length"})), (*PARIS[:1], FINISH), PARIS[:3]])
async def test_an_answer_that_is_not_complete_is_not_kept(events: tuple[Event, ...]) -> None:
    index = TableIndex()

    await ask(a_cache(index, MemoryStore()), Scripted(events), a_question(FRANCE))

    assert index.rows == []


async def test_an_answer_that_broke_off_is_not_kept() -> None:
    index = TableIndex()
    with pytest.raises(BackendError):
        await ask(a_cache(index, MemoryStore()), Scripted((*PARIS[:2], BackendError("broke"))), a_question(FRANCE))

    assert index.rows == []


async def test_a_client_that_leaves_closes_the_inner_handler_and_nothing_is_kept() -> None:
    index, core = TableIndex(), Scripted()
    cache = a_cache(index, MemoryStore())
    stream = compose([cache], core)(a_question(FRANCE))
    await anext(stream)
    await anext(stream)

    await stream.aclose()

    assert core.num_open == 0
    await cache.aclose()
    assert index.rows == []


async def test_the_answer_does_not_wait_for_the_insert() -> None:
    gate = asyncio.Event()
    index, core = TableIndex(), Scripted()
    cache = a_cache(index, MemoryStore())
    core.on_call = lambda call: setattr(index, "gate", gate)

    events = [event async for event in compose([cache], core)(a_question(FRANCE))]

    assert isinstance(events[-1], Finish)
    assert index.rows == []
    gate.set()
    await cache.aclose()
    assert len(index.rows) == 1


async def test_a_streamed_hit_comes_in_pieces_that_make_the_same_text() -> None:
    long = "All of it. " * 40
    core = Scripted((PARIS[0], Delta(text=long), FINISH))
    cache = a_cache(TableIndex(), MemoryStore())
    await ask(cache, core, a_question(FRANCE))

    events = await ask(cache, core, a_question(WHATS, stream=True))

    assert len(events) > 4
    assert text_of(events) == long


def test_a_threshold_that_is_no_cosine_is_refused() -> None:
    with pytest.raises(ValueError, match="cosine"):
        SemanticCache(
            TableIndex(), MemoryStore(), route_of=str, policy_of=lambda call: "", threshold=95, ttl_s=1, top_k=1
        )


SATURDAY, SUNDAY, WEEKEND = (
    "Are you open on Saturday?",
    "Are you open on Sunday?",
    "so are you open on Saturday, please?",
)
COSINES.update({frozenset({SATURDAY, SUNDAY}): 0.98, frozenset({SATURDAY, WEEKEND}): 0.97})
COSINES[frozenset({SUNDAY, WEEKEND})] = 0.975
GUARD = load_guard()


async def test_a_vetoed_neighbour_is_a_miss_whose_reason_is_kept() -> None:
    core = Scripted()
    cache = a_cache(TableIndex(), MemoryStore(), examiner=Examiner(StaticPolicy(0.95), GUARD))
    await ask(cache, core, a_question(SATURDAY))

    call = a_question(SUNDAY)
    await ask(cache, core, call)

    note = call.notes.cache
    assert (note.status, call.notes.extra["semantic"]) == (CacheStatus.MISS, "vetoed")
    assert [(one.similarity, one.veto) for one in note.candidates] == [(0.98, "date")]
    assert (note.policy, note.policy_version, note.guard_version) == ("static", "static-1", GUARD_VERSION)


async def test_a_vetoed_neighbour_gives_way_to_one_less_near() -> None:
    core = Scripted()
    cache = a_cache(TableIndex(), MemoryStore(), examiner=Examiner(StaticPolicy(0.95), GUARD))
    await ask(cache, core, a_question(SATURDAY, "saturday"))
    await ask(cache, core, a_question(SUNDAY, "sunday"))

    call = a_question(WEEKEND)
    await ask(cache, core, call)

    assert call.notes.cache.entry_call == "saturday"
    assert [one.veto for one in call.notes.cache.candidates] == ["date", None]
    assert call.notes.cache.p_correct is None


@pytest.mark.parametrize(("cost", "is_hit"), [(10.0, True), (10_000.0, False)])
async def test_the_calibrated_policy_serves_what_pays(cost: float, is_hit: bool) -> None:
    model = load_model()
    core = Scripted()
    examiner = Examiner(CalibratedPolicy(model, wrong_to_call_cost=cost), GUARD)
    cache = a_cache(TableIndex(), MemoryStore(), examiner=examiner)
    await ask(cache, core, a_question(FRANCE))

    call = a_question(WHATS)
    await ask(cache, core, call)

    note = call.notes.cache
    assert (note.status is CacheStatus.SEMANTIC) == is_hit
    assert note.threshold == 0.7
    [candidate] = note.candidates
    assert candidate.inputs is not None
    assert chance_of(model, candidate.inputs) == candidate.p_correct
    assert decide(note.candidates, bar=note.threshold).reason == call.notes.extra["semantic"]
    assert not is_hit or (note.p_correct, note.p_required) == (candidate.p_correct, candidate.p_required)


async def test_an_entry_of_before_questions_were_kept_is_not_served_under_the_guard() -> None:
    index, core, store = TableIndex(), Scripted(), MemoryStore()
    cache = a_cache(index, store, examiner=Examiner(StaticPolicy(0.95), GUARD))
    await ask(cache, core, a_question(FRANCE))
    [(_, _, entry)] = index.rows
    packed = await store.get(f"semantic:{entry}")
    assert packed is not None
    await store.put(f"semantic:{entry}", dump(replace(load(packed), question=None)), ttl_s=60)

    call = a_question(WHATS)
    await ask(cache, core, call)

    assert call.notes.cache.status is CacheStatus.MISS
    assert call.notes.cache.candidates[0].veto == "no_question"


async def test_in_relaxed_mode_a_follow_up_that_stands_alone_gets_the_answer_to_the_question_alone() -> None:
    text = "Does Flixora offer a free trial?"
    cache = SemanticCache(
        TableIndex(),
        MemoryStore(),
        route_of=lambda alias: "route",
        policy_of=lambda call: "policy",
        multi_turn=MultiTurn.RELAXED,
        deadline_ms=20_000,
    )
    history = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello, Ann."}]
    follow_up = [*history, {"role": "user", "content": text}]
    statuses = []
    for number, messages in enumerate((follow_up, follow_up, [{"role": "user", "content": text}], follow_up)):
        call = a_call(f"c{number}", messages=messages, temperature=0)
        async for _ in cache(call, Scripted()):
            pass
        await cache.aclose()
        statuses.append(call.notes.cache.status)

    assert statuses == [CacheStatus.MISS, CacheStatus.MISS, CacheStatus.MISS, CacheStatus.SEMANTIC]
    assert (call.notes.cache.entry_call, call.notes.cache.asked_alone is not None) == ("c2", True)
