from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cache.examiner import Examiner
from cache.memory_store import MemoryStore
from cache.policies.build import build_policy
from cache.policies.calibrated import CalibratedPolicy
from cache.policies.features import Features
from cache.policies.policy import Label as PolicyLabel
from cache.quarantine import keys_of, semantic_key
from cache.semantic import SemanticCache
from cache.store import StoreDown
from gateway.feedback import Feedback
from gateway.label_watch import Drawing, LabelWatch, lesson_of
from logging_layer.call_log import CallLog
from logging_layer.labels import Label, LabelBook, LabelSource
from orchestration.core import CacheControl, CacheStatus, Layer, compose
from orchestration.core.errors import NotFound, Unavailable
from tests.cache.scripted import Scripted, an_exact_cache
from tests.cache.test_semantic import FRANCE, WHATS, TableIndex, a_cache, a_question
from tests.logging_layer.samples import Kept


@dataclass
class Calls:
    """Records by id."""

    records: dict[str, dict[str, Any]] = field(default_factory=dict)

    async def get(self, call_id: str) -> dict[str, Any] | None:
        return self.records.get(call_id)


class BrokenStore(MemoryStore):
    """A store that does not answer."""

    async def delete(self, key: str) -> None:
        raise StoreDown("the store is away")


@pytest.fixture
def book(tmp_path: Path) -> LabelBook:
    return LabelBook(f"sqlite:///{tmp_path}/lamina.db")


@dataclass
class World:
    """Both caches over one store, with the log around them."""

    store: MemoryStore = field(default_factory=MemoryStore)
    core: Scripted = field(default_factory=Scripted)
    calls: Calls = field(default_factory=Calls)
    content: str = "full"

    def __post_init__(self) -> None:
        self._spool = Kept()
        self._semantic: SemanticCache = a_cache(TableIndex(), self.store)
        log = CallLog(self._spool, content=self.content, worker="w")
        layers: list[Layer] = [log, an_exact_cache(self.store), self._semantic]
        self._handler = compose(layers, self.core)

    async def ask(self, text: str, call_id: str, *, no_cache: bool = False) -> CacheStatus:
        call = a_question(text, call_id, cache=CacheControl(is_no_cache=no_cache))
        async for _ in self._handler(call):
            pass
        await self._semantic.aclose()
        self.calls.records[call_id] = json.loads(self._spool.records[-1].to_json())
        return call.notes.cache.status


async def test_a_wrong_hits_entry_is_served_no_more(book: LabelBook) -> None:
    world = World()
    await world.ask(FRANCE, "c1")
    assert await world.ask(WHATS, "c2") is CacheStatus.SEMANTIC

    said = await Feedback(world.calls, book, world.store).take("c2", is_correct=False, note="stale")

    assert said["num_quarantined"] == 1
    assert await world.ask(WHATS, "c3") is CacheStatus.MISS
    kept = (await book.since(0.0))[0]
    assert (kept.call, kept.is_correct, kept.note, kept.similarity) == ("c2", False, "stale", 0.99)
    await book.aclose()


async def test_a_wrong_answer_that_was_stored_is_gone_from_both_caches(book: LabelBook) -> None:
    world = World()
    await world.ask(FRANCE, "c1")

    await Feedback(world.calls, book, world.store).take("c1", is_correct=False, note=None)

    assert await world.ask(FRANCE, "c2") is CacheStatus.MISS
    await book.aclose()


async def test_an_exact_hit_that_was_wrong_is_not_served_as_a_similar_questions_answer(book: LabelBook) -> None:
    world = World()
    await world.ask(FRANCE, "c1")
    assert await world.ask(FRANCE, "c2") is CacheStatus.EXACT

    said = await Feedback(world.calls, book, world.store).take("c2", is_correct=False, note=None)

    assert said["num_quarantined"] == 2
    assert await world.ask(FRANCE, "c3") is CacheStatus.MISS
    await book.aclose()


async def test_a_wrong_answer_that_was_asked_anew_is_gone_from_both_caches(book: LabelBook) -> None:
    world = World()
    await world.ask(FRANCE, "c1", no_cache=True)

    await Feedback(world.calls, book, world.store).take("c1", is_correct=False, note=None)

    assert await world.ask(FRANCE, "c2") is CacheStatus.MISS
    await book.aclose()


async def test_a_wrong_answer_is_found_in_both_caches_where_the_log_keeps_no_texts(book: LabelBook) -> None:
    world = World(content="none")
    await world.ask(FRANCE, "c1")

    await Feedback(world.calls, book, world.store).take("c1", is_correct=False, note=None)

    assert await world.ask(FRANCE, "c2") is CacheStatus.MISS
    await book.aclose()


async def test_a_right_answer_stays(book: LabelBook) -> None:
    world = World()
    await world.ask(FRANCE, "c1")

    await Feedback(world.calls, book, world.store).take("c1", is_correct=True, note=None)

    assert await world.ask(FRANCE, "c2") is CacheStatus.EXACT
    await book.aclose()


async def test_a_call_that_nobody_knows_is_named(book: LabelBook) -> None:
    with pytest.raises(NotFound, match="No call 'nowhere'"):
        await Feedback(Calls(), book, MemoryStore()).take("nowhere", is_correct=False, note=None)
    await book.aclose()


async def test_a_label_is_not_kept_while_the_wrong_answer_cannot_be_removed(book: LabelBook) -> None:
    world = World()
    await world.ask(FRANCE, "c1")

    with pytest.raises(Unavailable):
        await Feedback(world.calls, book, BrokenStore()).take("c1", is_correct=False, note=None)

    assert await book.since(0.0) == []
    await book.aclose()


def test_a_bypassed_call_has_nothing_to_forget() -> None:
    cache = {"status": "bypass", "key": None, "was_stored": False, "entry": None, "partition": None}

    assert keys_of({"cache": cache}, question="q") == ()
    assert semantic_key("e") == "semantic:e"


async def test_a_persons_word_lowers_the_entrys_odds_on_every_worker_once(book: LabelBook) -> None:
    examiner = Examiner(build_policy("calibrated", threshold=0.95, wrong_to_call_cost=25))
    policy = examiner.policy
    assert isinstance(policy, CalibratedPolicy)
    features = Features(0.97)
    before = policy.judge("e", features)
    label = Label(
        "c1", LabelSource.HUMAN, False, time.time(), entry="e", similarity=0.97, inputs=json.dumps(before.inputs)
    )
    await book.add([label])
    watch = LabelWatch(book, examiner)

    learned = [await watch.look(), await watch.look()]

    assert learned == [1, 0]
    assert examiner.policy.judge("e", features).p_correct < before.p_correct
    await watch.aclose()
    await book.aclose()


async def test_a_policy_that_was_put_in_force_learns_what_was_known_before(book: LabelBook) -> None:
    examiner = Examiner(build_policy("static", threshold=0.95, wrong_to_call_cost=25))
    fresh = build_policy("calibrated", threshold=0.95, wrong_to_call_cost=25)
    inputs = json.dumps(fresh.judge("e", Features(0.97)).inputs)
    await book.add([Label("c1", LabelSource.HUMAN, False, time.time(), entry="e", similarity=0.97, inputs=inputs)])
    watch = LabelWatch(book, examiner)
    await watch.look()
    examiner.policy, examiner.applied = fresh, 1

    learned = [await watch.look(), await watch.look()]

    assert learned == [1, 0]
    assert examiner.policy.judge("e", Features(0.97)).p_correct < fresh.judge("e", Features(0.97)).p_correct
    await watch.aclose()
    await book.aclose()


async def test_a_policy_that_comes_in_the_midst_of_lessons_learns_each_once(
    book: LabelBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    examiner = Examiner(build_policy("calibrated", threshold=0.95, wrong_to_call_cost=25))
    fresh = examiner.policy
    inputs = json.dumps(fresh.judge("e", Features(0.97)).inputs)
    now = time.time()
    await book.add([Label(f"c{n}", LabelSource.HUMAN, False, now + n, entry="e", inputs=inputs) for n in range(3)])
    watch = LabelWatch(book, examiner)
    observe = Examiner.observe

    def put_in_force() -> None:
        examiner.policy, examiner.applied = fresh, 1

    def observed(self: Examiner, label: PolicyLabel) -> None:
        observe(self, label)
        if self.applied is None:
            asyncio.get_running_loop().call_soon(put_in_force)

    monkeypatch.setattr(Examiner, "observe", observed)
    learned = [await watch.look(), await watch.look()]

    policy = examiner.policy
    assert isinstance(policy, CalibratedPolicy)
    assert (learned, policy.learned.num_labels) == ([1, 3], 3)
    await watch.aclose()
    await book.aclose()


@pytest.mark.parametrize(
    "label",
    [
        Label("c", LabelSource.HUMAN, None, 1.0, entry="e", inputs="[0.9, 1, 0, 0, 0, 0]"),
        Label("c", LabelSource.HUMAN, True, 1.0, entry="e"),
        Label("c", LabelSource.HUMAN, True, 1.0, entry="e", inputs="[0.9]"),
    ],
)
def test_what_is_not_sure_teaches_nothing(label: Label) -> None:
    assert lesson_of(label) is None


@pytest.mark.parametrize("has_judge", [False, True])
async def test_a_label_weighs_as_many_calls_as_it_stands_for(book: LabelBook, *, has_judge: bool) -> None:
    examiner = Examiner(build_policy("calibrated", threshold=0.95, wrong_to_call_cost=25))
    inputs = json.dumps(examiner.policy.judge("e", Features(0.97)).inputs)
    now = time.time()
    said = [
        ("same words", LabelSource.SHADOW, True),
        ("other words", LabelSource.SHADOW, None),
        ("other words", LabelSource.JUDGE, False),
        ("near", LabelSource.NEAR_MISS, False),
        ("a complaint", LabelSource.HUMAN, False),
    ]
    await book.add(
        [
            Label(call, source, is_correct, now + place, entry="e", similarity=0.97, inputs=inputs)
            for place, (call, source, is_correct) in enumerate(said)
        ]
    )
    watch = LabelWatch(book, examiner, drawing=Drawing(hits=0.02, near_misses=0.5, has_judge=lambda: has_judge))

    await watch.look()

    policy = examiner.policy
    assert isinstance(policy, CalibratedPolicy)
    learned = [(seen.is_correct, seen.weight) for seen in policy.learned.window]
    assert learned == [*([(True, 50.0)] if has_judge else []), (False, 50.0), (False, 2.0), (False, 1.0)]
    await watch.aclose()
    await book.aclose()
