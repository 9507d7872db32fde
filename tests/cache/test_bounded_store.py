from __future__ import annotations

import pytest

from cache.bounded_store import Breaker
from tests.cache.scripted import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker(max_failures=3, pause_s=1.0, max_pause_s=4.0, clock=clock)


def opened(breaker: Breaker) -> None:
    for _ in range(3):
        assert breaker.may_ask()
        breaker.fail()


def test_a_few_failures_do_not_stop_the_asking(breaker: Breaker) -> None:
    for _ in range(10):
        for _ in range(2):
            assert breaker.may_ask()
            breaker.fail()
        assert breaker.may_ask()
        breaker.succeed()


def test_failures_in_a_row_stop_it_for_a_pause_and_then_one_may_try(breaker: Breaker, clock: Clock) -> None:
    opened(breaker)
    assert not breaker.may_ask()

    clock.now += 1.0

    assert breaker.may_ask()
    assert not breaker.may_ask()


def test_a_success_ends_the_pause(breaker: Breaker, clock: Clock) -> None:
    opened(breaker)
    clock.now += 1.0
    assert breaker.may_ask()
    breaker.succeed()

    assert all(breaker.may_ask() for _ in range(5))


def test_the_pause_doubles_with_each_failed_try_up_to_its_bound(breaker: Breaker, clock: Clock) -> None:
    opened(breaker)

    for pause_s in (1.0, 2.0, 4.0, 4.0):
        clock.now += pause_s - 0.01
        assert not breaker.may_ask()
        clock.now += 0.01
        assert breaker.may_ask()
        breaker.fail()


def test_many_that_fail_at_once_do_not_lengthen_the_pause(breaker: Breaker, clock: Clock) -> None:
    for _ in range(64):
        breaker.fail()

    clock.now += 1.0

    assert breaker.may_ask()


def test_a_try_that_came_to_no_end_is_followed_by_another(breaker: Breaker, clock: Clock) -> None:
    opened(breaker)
    for _ in range(3):
        clock.now += 1.0
        assert breaker.may_ask()
