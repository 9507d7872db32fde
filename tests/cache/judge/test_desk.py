from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from cache.aliases import Aliases
from cache.entry import load
from cache.examiner import Examiner
from cache.guard import load_guard
from cache.judge.desk import DeskLimits, JudgeDesk, Verdict
from cache.judge.opinion import Failure, Opinion
from cache.memory_store import MemoryStore
from cache.partition import Question
from cache.policies.static import StaticPolicy
from cache.quarantine import alias_key, semantic_key
from cache.semantic import SemanticCache
from cache.store import StoreDown
from orchestration.core import CacheStatus, Call, Finish
from tests.cache.scripted import PARIS, Clock, Scripted, a_call
from tests.cache.test_semantic import TableIndex

FRANCE = "what is the capital of France?"
NEAR = "which city is the capital of France?"
"""The guard does not know `city`, which a judge may overrule."""
PLAIN = "what is France's capital?"
GERMANY = "what is the capital of Germany?"
COSINES = {
    frozenset({FRANCE, NEAR}): 0.9,
    frozenset({FRANCE, PLAIN}): 0.9,
    frozenset({FRANCE, GERMANY}): 0.93,
    frozenset({NEAR, GERMANY}): 0.85,
}
CUT_OFF = (*PARIS[:-1], Finish(reasons={0: "length"}))


@dataclass
class Leases:
    """Leases that another worker may hold."""

    held: set[str] = field(default_factory=set)

    async def acquire(self, key: str, *, ttl_s: float) -> str | None:
        if key in self.held:
            return None
        self.held.add(key)
        return "token"

    async def release(self, key: str, token: str) -> None:
        self.held.discard(key)


@dataclass
class World:
    """A semantic tier with a scripted judge behind it; `says` is the judge's word, or what it waits for first."""

    says: Opinion = field(default_factory=lambda: Opinion(is_same=True, cost_usd=0.001))
    limits: DeskLimits = field(default_factory=DeskLimits)
    is_in_force: bool = True
    gate: asyncio.Event | None = None
    asked: list[tuple[str, str]] = field(default_factory=list)
    told: list[Verdict] = field(default_factory=list)
    counts: list[str] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    store: MemoryStore = field(default_factory=MemoryStore)
    leases: Leases = field(default_factory=Leases)
    core: Scripted = field(default_factory=Scripted)
    clock: Clock = field(default_factory=Clock)
    drawn: float = 0.5
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        examiner = Examiner(StaticPolicy(0.95), load_guard())
        self.desk = JudgeDesk(
            self._compare,
            store=self.store,
            leases=self.leases,
            examiner=examiner,
            tell=self._tell,
            count=self._count,
            is_in_force=lambda: self.is_in_force,
            draw=lambda: self.drawn,
            limits=self.limits,
            clock=self.clock,
            sleep=self._sleep,
        )
        self.cache = SemanticCache(
            TableIndex(cosines=COSINES),
            self.store,
            route_of=lambda alias: "route",
            policy_of=lambda call: "policy",
            examiner=examiner,
            judge=self.desk,
            ttl_s=3600.0,
            deadline_ms=20_000,
            clock=self.clock,
        )

    async def ask(self, text: str, id: str = "c1", threshold: float | None = None) -> Call:
        call = a_call(id, messages=[{"role": "user", "content": text}], temperature=0, threshold=threshold)
        async for _ in self.cache(call, self.core):
            pass
        await asyncio.gather(*self.cache._inserts)
        return call

    async def near_miss(self, text: str = NEAR) -> Call:
        """Keep France's answer, then ask for it in other words, whose own answer is cut off and so not kept."""
        await self.ask(FRANCE, "c1")
        self.core.events = CUT_OFF
        return await self.ask(text, "c2")

    async def judged(self) -> None:
        """Let the judge work until it has dealt with a pair."""
        self.desk.start()
        await self.until(lambda: bool(self.slept))
        await self.desk.aclose()
        self.slept.clear()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for something that the desk does."""
        while not is_so():
            self.moved.clear()
            await self.moved.wait()

    async def _compare(self, one: str, other: str) -> Opinion:
        self.asked.append((one, other))
        self.moved.set()
        if self.gate is not None:
            await self.gate.wait()
        return self.says

    def _count(self, outcome: str) -> None:
        self.counts.append(outcome)
        self.moved.set()

    async def _tell(self, verdict: Verdict) -> None:
        self.told.append(verdict)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.moved.set()
        await asyncio.sleep(0)


async def test_an_approved_near_miss_is_served_next_time_as_an_alias() -> None:
    world = World()
    first = await world.near_miss()
    await world.judged()

    second = await world.ask(NEAR, "c3")

    assert (first.notes.cache.status, first.notes.extra["semantic"]) == (CacheStatus.MISS, "below_bar")
    assert world.asked == [(NEAR, FRANCE)]
    cache = second.notes.cache
    assert (cache.status, cache.is_alias, cache.entry_call) == (CacheStatus.SEMANTIC, True, "c1")
    assert (cache.similarity, cache.p_correct, second.notes.extra["semantic"]) == (0.9, None, "alias")
    assert world.counts == ["approved"]


@pytest.mark.parametrize(("text", "similarity"), [(PLAIN, 0.9), (NEAR, None)])
async def test_the_verdict_is_a_lesson_where_the_guard_had_let_the_pair_pass(
    text: str, similarity: float | None
) -> None:
    world = World()
    await world.near_miss(text)
    await world.judged()

    (verdict,) = world.told
    assert (verdict.pair.call, verdict.is_correct, verdict.cost_usd) == ("c2", True, 0.001)
    assert (verdict.values[0] if verdict.values else None) == similarity


async def test_a_rejected_near_miss_is_a_label_and_no_alias() -> None:
    world = World(says=Opinion(is_same=False))
    await world.near_miss()
    await world.judged()

    again = await world.ask(NEAR, "c3")

    assert again.notes.cache.status is CacheStatus.MISS
    assert [verdict.is_correct for verdict in world.told] == [False]
    assert world.counts == ["rejected", "duplicate"]


@pytest.mark.parametrize("failure", list(Failure))
async def test_a_judge_that_gives_no_opinion_is_counted_and_serves_nothing(failure: Failure) -> None:
    world = World(says=Opinion(None, failure))
    await world.near_miss()
    await world.judged()

    again = await world.ask(NEAR, "c3")

    assert again.notes.cache.status is CacheStatus.MISS
    assert (world.counts, world.told) == ([failure.value], [])
    assert world.leases.held == set()  # the pair may come again, and has
    assert world.desk.num_waiting == 1


async def test_a_pair_that_another_worker_looks_at_is_left_to_it() -> None:
    world = World()
    partition = (await world.near_miss()).notes.cache.partition
    assert partition is not None
    world.leases.held.add(f"judge:{Question(partition, NEAR).entry}:{Question(partition, FRANCE).entry}:0")

    world.desk.start()
    await world.until(lambda: bool(world.counts))
    await world.desk.aclose()

    assert (world.counts, world.asked) == (["duplicate"], [])


async def test_the_same_near_miss_waits_once() -> None:
    world = World()
    await world.near_miss()
    await world.ask(NEAR, "c3")

    assert (world.desk.num_waiting, world.counts) == (1, ["duplicate"])


async def test_a_full_queue_drops_what_comes_and_the_caller_does_not_wait() -> None:
    world = World(limits=DeskLimits(max_waiting=1))
    await world.near_miss()

    await world.ask(GERMANY, "c3")

    assert (world.desk.num_waiting, world.counts) == (1, ["full"])


async def test_what_the_guard_refuses_for_good_never_reaches_the_judge() -> None:
    world = World()
    await world.ask(FRANCE, "c1")
    await world.ask(GERMANY, "c2")

    world.desk.start()
    await world.until(lambda: bool(world.counts))
    await world.desk.aclose()

    assert (world.counts, world.asked) == (["vetoed"], [])


async def test_opinions_are_asked_for_at_the_rate_allowed() -> None:
    world = World(limits=DeskLimits(per_minute=20))
    await world.near_miss()
    world.desk.start()
    await world.until(lambda: bool(world.slept))
    await world.desk.aclose()

    assert world.slept == [3.0]


async def test_only_a_share_of_near_misses_is_drawn() -> None:
    world = World(limits=DeskLimits(share=0.5), drawn=0.5)
    await world.near_miss()

    assert (world.desk.num_waiting, world.counts) == (0, ["undrawn"])


async def test_what_is_far_off_is_no_near_miss() -> None:
    world = World(limits=DeskLimits(min_similarity=0.91))
    await world.near_miss()

    assert (world.desk.num_waiting, world.counts) == (0, [])


async def test_a_judge_that_has_no_say_is_asked_nothing_and_serves_nothing() -> None:
    world = World()
    await world.near_miss()
    await world.judged()
    world.is_in_force = False

    again = await world.ask(NEAR, "c3")

    assert again.notes.cache.status is CacheStatus.MISS
    assert world.desk.num_waiting == 0


def _forget_entry(world: World) -> None:
    for key in [key for key in world.store._values if key.startswith("semantic:")]:
        del world.store._values[key]


def _let_it_expire(world: World) -> None:
    world.clock.now += 3601.0


@pytest.mark.parametrize("end", [_forget_entry, _let_it_expire])
async def test_the_alias_of_an_entry_that_is_gone_is_never_served(end: Callable[[World], None]) -> None:
    world = World()
    await world.near_miss()
    await world.judged()
    end(world)

    again = await world.ask(NEAR, "c3")

    assert (again.notes.cache.status, again.notes.cache.is_alias) == (CacheStatus.MISS, False)


async def test_the_alias_of_a_quarantined_entry_stays_dead_when_its_question_is_answered_anew() -> None:
    world = World()
    await world.near_miss()
    await world.judged()
    _forget_entry(world)
    world.core.events = PARIS
    await world.ask(FRANCE, "c3")  # the same entry's id, another answer
    world.core.events = CUT_OFF

    again = await world.ask(NEAR, "c4")

    assert again.notes.cache.status is CacheStatus.MISS


async def test_an_alias_is_not_served_below_the_floor_of_a_request() -> None:
    world = World()
    await world.near_miss()
    await world.judged()

    strict, loose = await world.ask(NEAR, "c3", threshold=0.97), await world.ask(NEAR, "c4", threshold=0.5)

    assert strict.notes.cache.status is CacheStatus.MISS
    assert loose.notes.cache.is_alias


async def test_a_poisoned_alias_is_not_served_against_the_guards_word() -> None:
    world = World()
    call = await world.ask(FRANCE, "c1")
    entry = next(key for key in world.store._values if key.startswith("semantic:")).removeprefix("semantic:")
    packed = await world.store.get(semantic_key(entry))
    assert packed is not None
    assert call.notes.cache.partition is not None
    germany = Question(call.notes.cache.partition, GERMANY)
    await Aliases(world.store, clock=world.clock).keep(germany, load(packed), similarity=0.99)

    asked = await world.ask(GERMANY, "c2")

    assert (asked.notes.cache.status, asked.notes.cache.is_alias) == (CacheStatus.MISS, False)


async def test_a_hit_that_the_judge_calls_wrong_is_served_no_more() -> None:
    world = World(says=Opinion(is_same=False))
    call = await world.ask(FRANCE, "c1")
    entry = next(key for key in world.store._values if key.startswith("semantic:")).removeprefix("semantic:")
    assert call.notes.cache.partition is not None
    question = Question(call.notes.cache.partition, NEAR)
    world.desk.consider_hit("c2", question, entry, 0.96)
    await world.judged()

    assert await world.store.get(semantic_key(entry)) is None
    assert await world.store.get(alias_key(question)) is None
    assert [(verdict.pair.is_hit, verdict.is_correct) for verdict in world.told] == [(True, False)]


async def test_a_fault_that_ends_the_desk_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    await world.near_miss()

    def fail(_one: str, _other: str) -> Opinion:
        world.moved.set()
        raise RuntimeError("a fault of ours")

    world.desk._compare = fail  # type: ignore[assignment]  # which no judge does
    world.desk.start()
    await world.until(lambda: world.desk.num_waiting == 0)
    await world.desk.aclose()

    assert "cache.judge_ended" in caplog.text


async def test_the_end_gives_up_what_waits() -> None:
    world = World(gate=asyncio.Event())
    await world.near_miss()
    world.desk.start()
    await world.until(lambda: bool(world.asked))

    await world.desk.aclose()

    assert (world.told, world.counts) == ([], [])


async def test_a_store_that_is_away_is_counted_and_the_desk_goes_on() -> None:
    world = World()
    await world.near_miss()

    async def away(key: str) -> bytes | None:
        raise StoreDown("gone")

    real, world.store.get = world.store.get, away  # type: ignore[method-assign]  # a store that fails once
    await world.judged()
    world.store.get = real  # type: ignore[method-assign]  # and is back

    assert world.counts == ["down"]
