"""Cool-downs between processes, over a real Valkey."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from gateway.cooldowns import RedisCooldowns
from orchestration.core.errors import BackendUnavailable, Overloaded
from orchestration.core.standing import Standings


@contextlib.asynccontextmanager
async def process(url: str, *ids: str) -> AsyncIterator[Standings]:
    """Be one worker."""
    standings = Standings()
    cooldowns = RedisCooldowns(url, standings=standings, ids=ids, poll_s=0.02)
    standings.cooldowns = cooldowns
    cooldowns.start()
    try:
        yield standings
    finally:
        await cooldowns.aclose()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110  # what another process learns raises no event here
            await asyncio.sleep(0.01)


def cooled_s(standings: Standings, id: str = "a") -> float:
    return standings.of(id).cooled_s(standings.clock())


async def test_every_process_hears_of_a_cool_down_and_of_its_end(valkey_url: str) -> None:
    async with process(valkey_url, "a", "b") as here, process(valkey_url, "a", "b") as there:
        here.failed(here.of("a"), Overloaded("full", retry_after_s=20.0))
        await until(lambda: cooled_s(there) > 0)
        left_s = cooled_s(there)
        assert 0.0 < left_s <= 20.1
        assert cooled_s(there, "b") == 0.0

        there.answered(there.of("a"), begun_s=there.clock())
        await until(lambda: cooled_s(here) == 0.0)


async def test_one_that_starts_later_learns_what_is_known(valkey_url: str) -> None:
    async with process(valkey_url, "a") as here:
        here.failed(here.of("a"), Overloaded("full", retry_after_s=20.0))
        await until(lambda: here.of("a").is_told)

        async with process(valkey_url, "a") as late:
            await until(lambda: cooled_s(late) > 0)
            assert late.of("a").reason == "overloaded"


async def test_without_redis_a_process_goes_by_what_it_sees(tmp_path: Path) -> None:
    async with process(f"unix://{tmp_path / 'nobody.sock'}", "a") as alone:
        stopped_s = alone.clock()
        alone.clock = lambda: stopped_s
        alone.failed(alone.of("a"), BackendUnavailable("down"))
        await asyncio.sleep(0.05)

        assert 0.0 < cooled_s(alone) <= 1.0
