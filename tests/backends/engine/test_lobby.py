from __future__ import annotations

import pytest

from backends.engine.sched.meter import QueueMeter
from backends.engine.types import RefusalCode, Refused
from tests.backends.engine.fakes import Bench, config, submission


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def _meter(*, every_s: float, num_tokens: int, count: int = 8) -> tuple[QueueMeter, Clock]:
    clock = Clock()
    meter = QueueMeter(clock)
    for _ in range(count):
        meter.note_departure(num_tokens)
        clock.now_s += every_s
    return meter, clock


def test_the_time_told_is_that_of_one_departure() -> None:
    meter, _ = _meter(every_s=0.5, num_tokens=100)

    assert meter.retry_after_s(0) == pytest.approx(0.5)


def test_how_slowly_calls_came_before_there_was_a_queue_does_not_count() -> None:
    meter, clock = _meter(every_s=600.0, num_tokens=100)

    meter.note_beginning()
    for _ in range(16):
        meter.note_departure(100)
    at_once = meter.retry_after_s(0)
    clock.now_s += 4.0

    assert at_once == pytest.approx(0.1)
    assert meter.retry_after_s(0) == pytest.approx(4.0 / 16)


def test_the_time_told_is_that_of_the_tokens_in_the_way_where_they_are_many() -> None:
    meter, _ = _meter(every_s=0.5, num_tokens=100)

    assert meter.retry_after_s(1000) == pytest.approx(5.0)


def test_those_refused_together_are_told_one_after_another() -> None:
    meter, clock = _meter(every_s=0.5, num_tokens=100)

    assert [meter.retry_after_s(0) for _ in range(3)] == pytest.approx([0.5, 1.0, 1.5])
    clock.now_s += 1.0
    assert meter.retry_after_s(0) > 1.0 - 0.5


def test_the_time_told_grows_while_nothing_leaves_and_is_bounded() -> None:
    meter, clock = _meter(every_s=0.5, num_tokens=100)
    clock.now_s += 8.0

    assert meter.retry_after_s(0) == pytest.approx(12.0 / 8)
    clock.now_s += 100_000.0
    assert meter.retry_after_s(0) == 60.0


def test_a_burst_of_refusals_is_forgotten_in_a_minute() -> None:
    meter, clock = _meter(every_s=0.01, num_tokens=1)
    for _ in range(100_000):
        meter.retry_after_s(0)
    clock.now_s += 60.0
    for _ in range(64):
        meter.note_departure(1)
        clock.now_s += 0.01

    assert meter.retry_after_s(0) == pytest.approx(0.1)


def test_before_anything_was_measured_it_is_a_second() -> None:
    assert QueueMeter(Clock()).retry_after_s(5) == 1.0


def test_who_comes_back_when_told_finds_room() -> None:
    bench = Bench(config(max_waiting=2, max_num_seqs=1))
    for number in range(2):
        bench.submit(submission([number], max_tokens=4))
    for _ in range(20):  # one request in four steps of a second each
        bench.step()
        bench.now_s += 1.0
        while bench.scheduler.num_waiting < 2:
            bench.submit(submission([3], max_tokens=4))
    with pytest.raises(Refused) as refusal:
        bench.submit(submission([4]))
    assert refusal.value.code is RefusalCode.QUEUE_FULL
    assert refusal.value.retry_after_s is not None

    back_at_s = bench.now_s + refusal.value.retry_after_s
    while bench.now_s < back_at_s:
        bench.step()
        bench.now_s += 1.0

    assert bench.submit(submission([4]))


def test_a_burst_after_a_quiet_hour_is_not_told_to_wait_as_long_as_the_quiet_lasted() -> None:
    bench = Bench(config(max_waiting=2, max_num_seqs=1))
    for _ in range(6):
        bench.submit(submission([1], max_tokens=1))
        bench.finish()
        bench.now_s += 600.0
    bench.submit(submission([2]))
    bench.step()
    for _ in range(2):
        bench.submit(submission([3]))

    with pytest.raises(Refused) as refusal:
        bench.submit(submission([4]))

    assert refusal.value.retry_after_s == 1.0


def test_waiting_tokens_are_bounded() -> None:
    bench = Bench(config(max_waiting_tokens=30))
    bench.submit(submission([1] * 20))
    with pytest.raises(Refused, match="20 tokens wait already and 11 more exceed 30") as refusal:
        bench.submit(submission([2] * 11))
    bench.submit(submission([2] * 10))

    assert refusal.value.code is RefusalCode.QUEUE_FULL
    assert refusal.value.retry_after_s == 1.0
    assert bench.scheduler.num_waiting_tokens == 30
    bench.finish()
    assert bench.scheduler.num_waiting_tokens == 0


def test_one_request_may_always_wait_however_long() -> None:
    bench = Bench(config(max_waiting_tokens=5))

    bench.submit(submission([1] * 20))
    bench.finish()

    assert bench.scheduler.counters.finished == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_waiting", -1), ("max_waiting_tokens", 0), ("prefill_share", 0.0), ("prefill_share", 1.5),
        ("chunk_share", float("nan")), ("priority_age_s", -1.0), ("priority_age_s", float("inf")),
        ("max_overtakes", -1), ("page_size", 0),
    ],
)  # fmt: skip
def test_settings_that_cannot_hold_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} is {value}; it must be"):
        config(**{field: value})
