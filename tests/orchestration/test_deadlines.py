from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from orchestration.core.deadlines import Deadlines


async def test_what_takes_too_long_is_cancelled_and_becomes_a_timeout() -> None:
    deadlines = Deadlines()
    begun = asyncio.get_running_loop().time()

    with pytest.raises(TimeoutError), deadlines.within(0.02):
        await asyncio.Event().wait()

    assert asyncio.get_running_loop().time() - begun >= 0.019
    current = asyncio.current_task()
    assert current is not None
    assert current.cancelling() == 0


async def test_what_ends_in_time_is_left_alone_even_later() -> None:
    deadlines = Deadlines()

    with deadlines.within(0.01):
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)

    with deadlines.within(0.5):
        await asyncio.sleep(0.001)


async def test_a_shorter_limit_set_later_is_kept() -> None:
    deadlines = Deadlines()
    order: list[str] = []
    deadlines.ring(0.06, lambda: order.append("long"))
    deadlines.ring(0.02, lambda: order.append("short"))
    deadlines.ring(0.04, lambda: order.append("middle"))
    deadlines.ring(0.03, lambda: order.append("cancelled")).cancel()

    await asyncio.sleep(0.15)

    assert order == ["short", "middle", "long"]


async def test_a_cancellation_from_outside_stays_one() -> None:
    deadlines = Deadlines()
    begun = asyncio.Event()

    async def wait() -> None:
        with deadlines.within(20.0):
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await begun.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_limits_stand_inside_one_another() -> None:
    deadlines = Deadlines()

    with pytest.raises(TimeoutError), deadlines.within(0.02), deadlines.within(20.0):
        await asyncio.Event().wait()
    with deadlines.within(20.0):
        with pytest.raises(TimeoutError), deadlines.within(0.02):
            await asyncio.Event().wait()
        await asyncio.sleep(0.01)


async def test_many_at_once_each_end_at_their_own_time() -> None:
    deadlines = Deadlines()

    async def wait(number: int) -> float:
        begun = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError), deadlines.within(0.001 * number):
            await asyncio.Event().wait()
        return asyncio.get_running_loop().time() - begun

    taken = await asyncio.gather(*(wait(number) for number in range(1, 100)))

    assert all(taken_s >= 0.001 * number - 0.0015 for number, taken_s in enumerate(taken, 1))


class _Keeper:
    """Keeps an alarm whose work is a method of its own, as all do."""

    def __init__(self, deadlines: Deadlines, delay_s: float) -> None:
        self.rang = asyncio.Event()
        self.alarm = deadlines.ring(delay_s, self._act)

    def _act(self) -> None:
        self.rang.set()


async def test_an_alarm_that_rang_or_was_cancelled_makes_no_cycle_with_its_keeper() -> None:
    deadlines = Deadlines()
    rung, cancelled = _Keeper(deadlines, 0.0), _Keeper(deadlines, 20.0)
    async with asyncio.timeout(60):
        await rung.rang.wait()
    cancelled.alarm.cancel()
    kept = [weakref.ref(rung), weakref.ref(cancelled)]
    gc.disable()
    try:
        del rung, cancelled
        assert [each() for each in kept] == [None, None]
    finally:
        gc.enable()
