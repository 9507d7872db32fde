from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.batcher import Batcher, BatchLimits, Lane, QueueFull, Send, Wait, Waiting, decide_batch

LIMITS = BatchLimits(max_batch_size=4, max_queue_delay_s=0.002, max_batch_tokens=100, max_patient_tokens=50)

lanes = st.lists(st.builds(Waiting, arrived_s=st.floats(0.0, 1.0), num_tokens=st.integers(1, 256)), max_size=12).map(
    lambda items: sorted(items, key=lambda item: item.arrived_s)
)


def waiting(count: int, *, arrived_s: float = 0.0, num_tokens: int = 10) -> list[Waiting]:
    return [Waiting(arrived_s, num_tokens)] * count


def test_a_full_batch_is_sent_at_once() -> None:
    assert decide_batch(waiting(4), [], limits=LIMITS, now_s=0.0) == Send(4, 0)


def test_less_than_a_full_batch_waits_until_the_oldest_has_waited_the_delay() -> None:
    three = [Waiting(0.0, 10), Waiting(0.001, 10), Waiting(0.0015, 10)]

    assert decide_batch(three, [], limits=LIMITS, now_s=0.0015) == Wait(0.002)
    assert decide_batch(three, [], limits=LIMITS, now_s=0.002) == Send(3, 0)


def test_nobody_is_waited_for_who_is_not_to_be_expected_in_time() -> None:
    one = [Waiting(0.0, 10)]

    assert decide_batch(one, [], limits=LIMITS, now_s=0.0, mean_gap_s=0.005) == Send(1, 0)
    assert decide_batch(one, [], limits=LIMITS, now_s=0.0, mean_gap_s=0.0005) == Wait(0.002)
    assert decide_batch(one, [], limits=LIMITS, now_s=0.0016, mean_gap_s=0.0005) == Send(1, 0)


def test_nothing_waiting_waits_for_an_arrival() -> None:
    assert decide_batch([], [], limits=LIMITS, now_s=5.0) == Wait(None)


def test_patient_items_take_what_urgent_ones_leave() -> None:
    assert decide_batch(waiting(3), waiting(5), limits=LIMITS, now_s=0.0) == Send(3, 1)


def test_patient_items_alone_make_smaller_batches() -> None:
    assert decide_batch([], waiting(4, num_tokens=20), limits=LIMITS, now_s=0.0) == Send(0, 2)


def test_a_patient_item_that_has_waited_long_gets_a_place_in_a_full_batch() -> None:
    assert decide_batch(waiting(8), waiting(2), limits=LIMITS, now_s=LIMITS.patience_s) == Send(3, 1)


def test_padding_counts_against_the_tokens_of_a_batch() -> None:
    urgent = [Waiting(0.0, 10), Waiting(0.0, 40), Waiting(0.0, 40)]

    assert decide_batch(urgent, [], limits=LIMITS, now_s=0.0) == Send(2, 0)  # 3 x 40 would be 120


@given(urgent=lanes, patient=lanes, now_s=st.floats(0.0, 3.0))
def test_a_batch_keeps_its_bounds_and_nothing_waits_past_its_delay(
    urgent: list[Waiting], patient: list[Waiting], now_s: float
) -> None:
    decision = decide_batch(urgent, patient, limits=LIMITS, now_s=now_s)

    oldest = min((item.arrived_s for item in urgent + patient), default=None)
    match decision:
        case Wait(None):
            assert oldest is None
        case Wait(until_s):
            assert oldest is not None
            assert until_s == oldest + LIMITS.max_queue_delay_s
            assert now_s < until_s
        case Send(num_urgent, num_patient):
            chosen = urgent[:num_urgent] + patient[:num_patient]
            assert 1 <= len(chosen) <= LIMITS.max_batch_size
            assert len(chosen) == num_urgent + num_patient
            longest = max(item.num_tokens for item in chosen)
            assert len(chosen) == 1 or longest * len(chosen) <= LIMITS.max_batch_tokens


@pytest.mark.parametrize("wrong", [{"max_batch_size": 0}, {"max_waiting": 0}, {"max_queue_delay_s": -0.1}])
def test_limits_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        BatchLimits(**wrong)


class Model:
    """Doubles numbers, one batch at a time, when the test lets it."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.is_running = asyncio.Event()
        self.may_end = asyncio.Event()

    async def run(self, batch: Sequence[int]) -> Sequence[int]:
        self.batches.append(list(batch))
        self.is_running.set()
        await self.may_end.wait()
        if 13 in batch:
            raise ArithmeticError("thirteen")
        return [2 * item for item in batch]


@asynccontextmanager
async def running(model: Model, limits: BatchLimits) -> AsyncGenerator[Batcher[int, int], None]:
    batcher = Batcher(model.run, limits=limits)
    batcher.start()
    try:
        yield batcher
    finally:
        await batcher.aclose()


async def submit_while_busy(
    batcher: Batcher[int, int], model: Model, items: Sequence[int], *, lane: Lane = Lane.URGENT
) -> list[asyncio.Task[int]]:
    """Submit the first item, and the others once it runs."""
    tasks = [asyncio.create_task(batcher.submit(items[0], num_tokens=10))]
    await model.is_running.wait()
    tasks += [asyncio.create_task(batcher.submit(item, num_tokens=10, lane=lane)) for item in items[1:]]
    await asyncio.sleep(0)
    return tasks


async def test_what_came_while_the_model_was_busy_is_sent_together() -> None:
    model = Model()
    async with running(model, LIMITS) as batcher:
        tasks = await submit_while_busy(batcher, model, [1, 2, 3, 4, 5])

        model.may_end.set()

        assert await asyncio.gather(*tasks) == [2, 4, 6, 8, 10]
    assert model.batches == [[1], [2, 3, 4, 5]]


async def test_items_far_apart_are_run_at_once_and_close_ones_together() -> None:
    now_s = 0.0
    model = Model()
    model.may_end.set()
    batcher: Batcher[int, int] = Batcher(
        model.run, limits=BatchLimits(max_batch_size=4, max_queue_delay_s=3600.0), clock=lambda: now_s
    )
    batcher.start()
    try:
        assert await batcher.submit(1, num_tokens=10) == 2  # nobody came before it, so nobody is expected
        now_s += 7200.0
        assert await batcher.submit(2, num_tokens=10) == 4
        for _ in range(40):  # each follows the one before at once
            close = [asyncio.create_task(batcher.submit(number, num_tokens=10)) for number in range(4)]
            await asyncio.gather(*close)
    finally:
        await batcher.aclose()

    assert model.batches[:2] == [[1], [2]]
    assert model.batches[-1] == [0, 1, 2, 3]


async def test_one_item_more_than_may_wait_is_refused_at_once() -> None:
    model = Model()
    async with running(model, BatchLimits(max_waiting=2)) as batcher:
        tasks = await submit_while_busy(batcher, model, [1, 2, 3])

        with pytest.raises(QueueFull):
            await batcher.submit(4, num_tokens=10)

        model.may_end.set()
        assert await asyncio.gather(*tasks) == [2, 4, 6]


async def test_an_item_whose_caller_has_gone_is_never_run() -> None:
    model = Model()
    async with running(model, LIMITS) as batcher:
        first, gone, last = await submit_while_busy(batcher, model, [1, 2, 3])

        gone.cancel()
        await asyncio.wait([gone])
        model.may_end.set()

        assert await asyncio.gather(first, last) == [2, 6]
    assert model.batches == [[1], [3]]


async def test_a_failed_batch_fails_its_own_items_alone() -> None:
    model = Model()
    async with running(model, BatchLimits(max_batch_size=1)) as batcher:
        first, second = await submit_while_busy(batcher, model, [13, 1])

        model.may_end.set()

        with pytest.raises(ArithmeticError):
            await first
        assert await second == 2


async def test_closing_ends_those_who_wait() -> None:
    model = Model()
    async with running(model, LIMITS) as batcher:
        tasks = await submit_while_busy(batcher, model, [1, 2])

    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)


async def test_how_long_items_waited_and_how_large_batches_were_is_counted() -> None:
    now = [0.0]
    batcher: Batcher[str, str] = Batcher(_echo, limits=BatchLimits(max_queue_delay_s=0.0), clock=lambda: now[0])
    waiting = [asyncio.create_task(batcher.submit(text, num_tokens=1)) for text in "abc"]
    await asyncio.sleep(0)
    now[0] = 0.004

    batcher.start()
    await asyncio.gather(*waiting)

    bounds, counts, total = batcher.counts.delays.dump()
    assert counts[bounds.index(0.002)] == 0
    assert counts[bounds.index(0.005)] == counts[-1] == 3
    assert total == pytest.approx(0.012)
    assert batcher.counts.sizes.dump()[1][:3] == [0, 0, 1]
    await batcher.aclose()


async def _echo(items: Sequence[str]) -> Sequence[str]:
    return items
