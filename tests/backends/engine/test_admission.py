from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from backends.engine.sched.admission import Demand, OutputLengths, future_peak, greedy, peak_usage, reserve

THREE = [Demand(500, 100), Demand(300, 400), Demand(800, 50)]
FOURTH = Demand(400, 300)

demands = st.lists(st.builds(Demand, st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=8)


def test_the_worked_peak_of_three_is_1750() -> None:
    assert peak_usage(THREE) == 1750


def test_the_worked_peak_with_a_fourth_is_2200_and_fits_2600_where_reserving_refuses() -> None:
    assert peak_usage([*THREE, FOURTH]) == 2200
    assert future_peak(THREE, FOURTH, 2600)
    assert sum(each.current + each.remaining for each in (*THREE, FOURTH)) == 2850
    assert not reserve(THREE, FOURTH, 2600)
    assert reserve(THREE, FOURTH, 2850)


def test_greedy_looks_at_what_is_held_now() -> None:
    assert greedy(THREE, FOURTH, 2000)
    assert not greedy(THREE, FOURTH, 1999)


@given(demands)
def test_the_peak_is_the_largest_usage_at_any_time(running: list[Demand]) -> None:
    times = range(max(demand.remaining for demand in running) + 1)
    by_time = [sum(each.current + time for each in running if each.remaining >= time) for time in times]

    assert peak_usage(running) == max(by_time)


@given(demands, st.sampled_from([1, 2, 3, 16]))
def test_the_peak_in_pages_is_the_largest_sum_of_whole_pages_at_any_time(running: list[Demand], page_size: int) -> None:
    times = range(max(demand.remaining for demand in running) + 1)
    by_time = [
        sum(math.ceil((each.current + time) / page_size) for each in running if each.remaining >= time)
        for time in times
    ]

    assert peak_usage(running, page_size) == max(by_time) * page_size


def test_rounding_to_pages_can_refuse_what_fits_by_tokens() -> None:
    running, candidate = [Demand(17, 4)], Demand(17, 4)

    assert future_peak(running, candidate, 48, 1)
    assert not future_peak(running, candidate, 48, 16)
    assert not reserve(running, candidate, 48, 16)
    assert not greedy(running, candidate, 48, 16)
    assert future_peak(running, candidate, 64, 16)


@given(demands, st.builds(Demand, st.integers(0, 50), st.integers(0, 50)), st.integers(0, 900))
def test_reserve_is_the_strictest_and_greedy_the_laxest(
    running: list[Demand], candidate: Demand, capacity: int
) -> None:
    if reserve(running, candidate, capacity):
        assert future_peak(running, candidate, capacity)
    if future_peak(running, candidate, capacity):
        assert greedy(running, candidate, capacity)


def test_a_prediction_is_the_quantile_of_those_that_got_as_far() -> None:
    lengths = OutputLengths(min_samples=4, quantile=0.9)
    for length in [5] * 90 + list(range(100, 110)):
        lengths.add(length)

    assert lengths.remaining(generated=0, allowed=1000) == 5
    assert lengths.remaining(generated=4, allowed=1000) == 1
    assert lengths.remaining(generated=5, allowed=1000) == 108 - 5  # it is one of the long ones, then
    assert lengths.remaining(generated=104, allowed=1000) == 108 - 104
    assert lengths.remaining(generated=107, allowed=1000) == 1000  # too few got as far to tell


def test_only_the_last_answers_count() -> None:
    lengths = OutputLengths(window=20, min_samples=4)
    for length in [500] * 20 + [3] * 20:
        lengths.add(length)

    assert lengths.remaining(generated=0, allowed=1000) == 3


def test_lengths_are_what_is_allowed_until_enough_answers_ended() -> None:
    lengths = OutputLengths(min_samples=4)
    for length in (10, 10, 10):
        lengths.add(length)

    assert lengths.remaining(generated=0, allowed=500) == 500
    lengths.add(20)
    assert lengths.remaining(generated=0, allowed=500) == 10
    assert lengths.remaining(generated=0, allowed=5) == 5
    assert lengths.remaining(generated=10, allowed=500) == 500


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(0, 45), st.integers(1, 60))
def test_a_prediction_is_at_least_one_and_never_more_than_allowed(
    lengths: list[int], generated: int, allowed: int
) -> None:
    predictor = OutputLengths(window=10, min_samples=2)
    for length in lengths:
        predictor.add(length)

    assert 1 <= predictor.remaining(generated=generated, allowed=allowed) <= allowed
