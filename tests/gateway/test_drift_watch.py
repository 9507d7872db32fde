from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cache.examiner import Examiner
from cache.policies.drift import Terms
from cache.policies.static import StaticPolicy
from gateway.drift_watch import APPLIED_BY, DriftWatch
from gateway.hit_outcomes import HitOutcomes
from gateway.ids import new_ulid, ulid_time
from gateway.policy_watch import PolicyWatch
from logging_layer.labels import Label, LabelBook, LabelSource
from logging_layer.policies import PolicyHistory

SETTINGS = Terms("static", 0.9, 25.0)


@dataclass
class World:
    """One database, and workers on it that follow it when told to."""

    book: LabelBook
    history: PolicyHistory
    num_hits: int = 0
    workers: list[tuple[Examiner, PolicyWatch, DriftWatch]] = field(default_factory=list)
    num_told: int = 0
    num_counted: int = 0

    def worker(self) -> tuple[Examiner, PolicyWatch, DriftWatch]:
        examiner = Examiner(StaticPolicy(SETTINGS.threshold))
        drift = DriftWatch(
            book=self.book,
            history=self.history,
            examiner=examiner,
            settings=SETTINGS,
            count_hits=self._count_hits,
            told=self._tell,
        )
        self.workers.append((examiner, PolicyWatch(self.history, examiner), drift))
        return self.workers[-1]

    async def asked_again(self, *verdicts: bool | None, source: LabelSource = LabelSource.JUDGE) -> None:
        """Have hits asked again, each in other words, and somebody say what came of it."""
        for verdict in verdicts:
            call = new_ulid()
            shadow = Label(call, LabelSource.SHADOW, None, time.time(), entry="e", similarity=0.96)
            await self.book.add([shadow, Label(call, source, verdict, time.time(), entry="e", similarity=0.96)])

    async def _count_hits(self, _since: float) -> int:
        self.num_counted += 1
        return self.num_hits

    def _tell(self) -> None:
        self.num_told += 1


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    url = f"sqlite:///{tmp_path}/lamina.db"
    made = World(LabelBook(url), PolicyHistory(url))
    yield made
    await made.book.aclose()
    await made.history.aclose()


async def test_hits_that_go_wrong_tighten_the_bar_and_every_worker_follows(world: World) -> None:
    first, second = world.worker(), world.worker()
    await world.asked_again(*[False] * 6, *[True] * 10)

    applied = [await first[2].look(), await second[2].look()]
    for _, policies, _ in world.workers:
        await policies.look()

    assert [one is not None for one in applied] == [True, False]  # who comes second finds it done
    newest = (await world.history.recent())[0]
    assert (newest.version, newest.policy, newest.threshold) == (1, "static", pytest.approx(0.95))
    assert newest.applied_by == APPLIED_BY
    assert newest.reason == "drift: 6 of 16 hits that were asked again were wrong, 4.00% are promised"
    assert {(examiner.policy.floor, examiner.applied) for examiner, _, _ in world.workers} == {(newest.threshold, 1)}
    assert world.num_told == 1


async def test_what_the_looser_bar_served_is_not_held_against_the_tighter_one(world: World) -> None:
    examiner, policies, drift = world.worker()
    await world.asked_again(*[False] * 6)
    await drift.look()
    await policies.look()

    again = await drift.look()

    assert again is None
    assert (examiner.applied, len(await world.history.recent())) == (1, 1)


async def test_a_promise_stays_what_it_was_when_the_price_was_tightened(world: World) -> None:
    _, policies, drift = world.worker()
    long_ago = time.time() - 100
    await world.history.apply(
        policy="calibrated", threshold=0.95, wrong_to_call_cost=10, applied_by="ann", reason="try", now=long_ago
    )
    await policies.look()
    await world.asked_again(*[False] * 6)

    tighter = await drift.look()
    await policies.look()
    await drift.look()

    assert tighter is not None
    assert (tighter.policy, tighter.wrong_to_call_cost) == ("calibrated", 20)
    assert drift.numbers()["wrong_hit_rate_promised"] == pytest.approx(0.1)


async def test_hits_that_are_right_or_unknown_tighten_nothing(world: World) -> None:
    _, _, drift = world.worker()
    await world.asked_again(*[True] * 30, *[None] * 200, False)

    assert await drift.look() is None
    assert await world.history.recent() == []


@pytest.mark.parametrize(("num_hits", "is_tightened"), [(40, True), (5_000, False)])
async def test_complaints_are_held_against_all_hits_that_were_served(
    world: World, num_hits: int, *, is_tightened: bool
) -> None:
    _, _, drift = world.worker()
    world.num_hits = num_hits
    complaints = [Label(new_ulid(), LabelSource.HUMAN, False, time.time(), similarity=0.97) for _ in range(12)]
    await world.book.add(complaints)

    assert (await drift.look() is not None) is is_tightened


async def test_all_hits_are_counted_again_only_when_there_are_more_complaints(world: World) -> None:
    _, _, drift = world.worker()
    world.num_hits = 5_000
    counted = []
    for num_more in (8, 0, 1, 0):
        new = [Label(new_ulid(), LabelSource.HUMAN, False, time.time(), similarity=0.97) for _ in range(num_more)]
        await world.book.add(new)
        await drift.look()
        counted.append(world.num_counted)
    world.num_hits = 40
    await world.book.add([Label(new_ulid(), LabelSource.HUMAN, False, time.time(), similarity=0.97)])

    assert counted == [1, 1, 2, 2]
    assert await drift.look() is not None


async def test_complaints_about_drawn_hits_are_not_taken_for_all_of_them(world: World) -> None:
    _, _, drift = world.worker()
    world.num_hits = 40_000
    await world.asked_again(*[None] * 400)
    calls = [label.call for label in await world.book.since(0.0) if label.source is LabelSource.SHADOW]
    await world.book.add([Label(call, LabelSource.HUMAN, False, time.time(), similarity=0.96) for call in calls[:8]])

    assert await drift.look() is None  # 8 of 400 are 2 %, and not 8 of 8


async def test_a_person_overrules_a_judge_about_the_same_hit(world: World) -> None:
    _, _, drift = world.worker()
    await world.asked_again(*[False] * 6)
    calls = {label.call for label in await world.book.since(0.0)}
    await world.book.add([Label(call, LabelSource.HUMAN, True, time.time(), similarity=0.96) for call in calls])

    assert await drift.look() is None


async def test_words_about_near_misses_and_exact_hits_are_no_words_about_semantic_hits(world: World) -> None:
    _, _, drift = world.worker()
    near = [Label(new_ulid(), LabelSource.NEAR_MISS, False, time.time(), similarity=0.9) for _ in range(50)]
    exact = [Label(new_ulid(), LabelSource.HUMAN, False, time.time()) for _ in range(50)]
    await world.book.add([*near, *exact])

    assert await drift.look() is None
    assert drift.numbers()["sampled_hits_wrong"] == 0


async def test_the_wrong_rate_is_told_with_its_interval(world: World) -> None:
    _, _, drift = world.worker()
    await world.asked_again(False, *[True] * 18, None)
    await drift.look()

    numbers = drift.numbers()

    assert numbers["wrong_hit_rate"] == pytest.approx(1 / 20)
    assert numbers["wrong_hit_rate_low"] == pytest.approx(0.0013, abs=1e-4)  # 1 of 20
    assert numbers["wrong_hit_rate_high"] == pytest.approx(0.3170, abs=1e-4)  # 2 of 20
    assert numbers["wrong_hit_rate_promised"] == 0.04


async def test_without_labels_there_is_no_rate_to_tell(world: World) -> None:
    _, _, drift = world.worker()

    numbers = drift.numbers()

    assert "wrong_hit_rate" not in numbers
    assert (numbers["wrong_hit_rate_low"], numbers["wrong_hit_rate_high"]) == (0.0, 1.0)


async def test_a_database_that_is_away_tightens_nothing() -> None:
    url = "postgresql+psycopg2://nobody@127.0.0.1:9/none"
    world = World(LabelBook(url), PolicyHistory(url))
    _, _, drift = world.worker()

    assert await drift.look() is None
    await world.book.aclose()
    await world.history.aclose()


def test_an_id_tells_when_the_call_was_made() -> None:
    before_s = time.time()
    made_at = ulid_time(new_ulid())

    assert made_at is not None
    assert before_s - 0.001 <= made_at <= time.time()
    assert ulid_time("c1") is None


def test_the_oldest_hits_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.hit_outcomes.MAX_HITS", 3)
    outcomes = HitOutcomes()
    for number in range(5):
        outcomes.take(Label(f"c{number}", LabelSource.SHADOW, True, float(number)))

    assert [outcome.served_at for outcome in outcomes.since(0.0)] == [2.0, 3.0, 4.0]
