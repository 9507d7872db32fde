"""Health checks in the background: what they say of a backend, and how many run at once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from gateway.health_watch import HealthWatch
from orchestration.core.errors import BackendUnavailable, Overloaded
from orchestration.core.standing import Standings
from tests.orchestration.scripts import Scripted


@dataclass
class Patient(Scripted):
    problem: str | Exception | None = None
    running: list[int] = field(default_factory=lambda: [0, 0])

    async def check_health(self) -> str | None:
        self.running[0] += 1
        self.running[1] = max(self.running)
        await asyncio.sleep(0)
        self.running[0] -= 1
        if isinstance(self.problem, Exception):
            raise self.problem
        return self.problem


async def check(standings: Standings, **backends: Patient) -> None:
    await HealthWatch(backends, standings=standings, interval_s=10.0).check_all()


async def test_one_that_is_not_well_is_left_alone_until_it_is() -> None:
    standings = Standings(clock=lambda: 100.0)
    patient = Patient([], problem="answers 500")

    await check(standings, a=patient)
    cooled_s = standings.of("a").cooled_s(standings.clock())
    patient.problem = None
    described = standings.describe("a")
    await check(standings, a=patient)

    assert cooled_s == 20.0
    assert described["health"] == "answers 500"
    assert standings.of("a").cooled_s(standings.clock()) == 0.0


async def test_a_check_that_fails_is_a_problem_too() -> None:
    standings = Standings()

    await check(standings, a=Patient([], problem=BackendUnavailable("no route")), b=Patient([]))

    assert standings.describe("a")["health"] == "no route"
    assert standings.describe("b")["health"] == "ok"


async def test_being_well_does_not_lift_a_limit() -> None:
    standings = Standings()
    standings.failed(standings.of("a"), Overloaded("full", retry_after_s=30.0))

    await check(standings, a=Patient([]))

    assert standings.of("a").cooled_s(standings.clock()) > 29.0


async def test_four_are_asked_at_once_at_most() -> None:
    running = [0, 0]

    await check(Standings(), **{str(number): Patient([], running=running) for number in range(20)})

    assert running == [0, 4]


async def test_the_watch_ends_when_it_is_closed() -> None:
    watch = HealthWatch({"a": Patient([])}, standings=Standings(), interval_s=10.0)
    watch.start()

    await watch.aclose()

    assert not [task for task in asyncio.all_tasks() if task.get_name() == "health-watch"]
