from __future__ import annotations

import asyncio

import pytest

from cache.memory_store import MemoryStore
from cache.semantic import SemanticCache
from cache.shadow import MAX_AT_ONCE, Reask, Shadow
from orchestration.core import Delta, Event, Finish, Start
from orchestration.core.errors import BackendError
from tests.cache.scripted import PARIS, Scripted
from tests.cache.test_semantic import FRANCE, WHATS, TableIndex, a_question

ALIKE = (Start("real-model", "echo"), Delta(text="the  capital is PARIS"), Finish())
OTHER = (Start("real-model", "echo"), Delta(text="It is Paris."), Finish())


def shadowed(told: list[Reask], *, share: float = 1.0) -> tuple[SemanticCache, Shadow]:
    """Build a cache that asks every hit again, and keep what it tells."""

    async def tell(reask: Reask) -> None:
        told.append(reask)

    shadow = Shadow(share=share, draw=lambda: 0.5, tell=tell)
    cache = SemanticCache(
        TableIndex(),
        MemoryStore(),
        route_of=lambda alias: "r",
        policy_of=lambda call: "p",
        shadow=shadow,
        deadline_ms=20_000,
    )
    return cache, shadow


async def settle(shadow: Shadow) -> None:
    """Wait for what is asked again."""
    await asyncio.gather(*shadow._tasks)


async def hit(cache: SemanticCache, core: Scripted) -> None:
    """Store an answer, then hit it with a paraphrase."""
    for text in (FRANCE, WHATS):
        async for _ in cache(a_question(text, text), core):
            pass
        for _ in range(8):  # the insert is a task of the cache's
            await asyncio.sleep(0)


@pytest.mark.parametrize(("again", "is_same"), [(PARIS, True), (ALIKE, True), (OTHER, None)])
async def test_a_hit_is_asked_again_and_other_words_are_not_called_wrong(
    again: tuple[Event, ...], is_same: bool | None
) -> None:
    told: list[Reask] = []
    cache, shadow = shadowed(told)
    core = Scripted(
        on_call=lambda call: setattr(core, "events", again if call.request.messages[0]["content"] == WHATS else PARIS)
    )

    await hit(cache, core)
    await settle(shadow)

    assert [(reask.is_same, reask.similarity, reask.cost_usd) for reask in told] == [(is_same, 0.99, 0.25)]
    assert len(core.calls) == 2
    assert core.calls[1].notes is not core.calls[0].notes
    await cache.aclose()


async def test_a_hit_that_is_not_drawn_is_left_alone() -> None:
    told: list[Reask] = []
    cache, _ = shadowed(told, share=0.5)
    core = Scripted()

    await hit(cache, core)
    await cache.aclose()

    assert (len(core.calls), told) == (1, [])


async def test_a_backend_that_fails_tells_nothing() -> None:
    told: list[Reask] = []
    cache, shadow = shadowed(told)
    core = Scripted()
    async for _ in cache(a_question(FRANCE), core):
        pass
    for _ in range(8):
        await asyncio.sleep(0)
    core.events = [BackendError("gone")]

    async for _ in cache(a_question(WHATS), core):
        pass
    await settle(shadow)

    assert told == []
    await cache.aclose()


async def test_no_more_than_four_are_asked_at_once_and_the_end_cancels_them() -> None:
    told: list[Reask] = []
    cache, shadow = shadowed(told)
    core = Scripted()
    async for _ in cache(a_question(FRANCE), core):
        pass
    for _ in range(8):
        await asyncio.sleep(0)
    core.hold_at(0)

    for number in range(MAX_AT_ONCE + 3):
        async for _ in cache(a_question(WHATS, f"c{number}"), core):
            pass
    await core.reached[0].wait()
    for _ in range(8):
        await asyncio.sleep(0)

    assert core.num_open == MAX_AT_ONCE
    await cache.aclose()
    assert (core.num_open, told) == (0, [])
    assert not shadow._tasks
