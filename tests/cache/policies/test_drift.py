from __future__ import annotations

import random
from functools import partial
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cache.policies.drift import ALPHA, ENOUGH, Terms, grown, promised_rate, tightened, wealth
from cache.policies.interval import exact_interval

PROMISED = 0.04


def alarmed_after(stream: list[bool], *, promised: float = PROMISED, every: int = 20) -> int | None:
    """Look after every twentieth label; return after how many labels wealth first spoke of drift."""
    for count in range(every, len(stream) + 1, every):
        if wealth(stream[:count], promised=promised) >= ENOUGH:
            return count
    return None


def a_stream(draw: random.Random, *rates: tuple[int, float]) -> list[bool]:
    return [draw.random() < rate for count, rate in rates for _ in range(count)]


def test_a_policy_that_keeps_its_promise_is_seldom_ever_tightened() -> None:
    draw = random.Random(1)

    alarms = sum(alarmed_after(a_stream(draw, (1_000, PROMISED))) is not None for _ in range(200))

    assert alarms / 200 <= ALPHA / 2  # the bound of one stream of labels, however many come


@pytest.mark.parametrize("rate", [0.005, 0.02, 0.039])
def test_a_policy_that_does_better_than_it_promised_is_not_tightened(rate: float) -> None:
    draw = random.Random(2)

    alarms = sum(alarmed_after(a_stream(draw, (1_000, rate))) is not None for _ in range(40))

    assert alarms <= 40 * ALPHA


@pytest.mark.parametrize(("promised", "within"), [(0.04, 1_000), (0.1, 400)])
def test_a_doubled_rate_is_found_within_so_many_labels(promised: float, within: int) -> None:
    draw = random.Random(3)

    found = [alarmed_after(a_stream(draw, (within, 2 * promised)), promised=promised) for _ in range(100)]

    assert sum(count is not None for count in found) >= 90


def test_a_rate_that_doubles_after_a_thousand_good_labels_is_found_within_fifteen_hundred() -> None:
    draw = random.Random(4)

    found = [alarmed_after(a_stream(draw, (1_000, PROMISED / 2), (1_500, 2 * PROMISED)), every=50) for _ in range(40)]

    assert sum(count is not None and count > 1_000 for count in found) >= 36


@settings(deadline=None)
@given(st.integers(0, 60), st.floats(0.01, 0.5), st.sampled_from([0.5, 1.0]))
def test_expected_wealth_does_not_grow_while_the_promise_is_kept(num_labels: int, promised: float, part: float) -> None:
    rate = part * promised
    likely = partial(_likelihood, num_labels=num_labels, rate=rate)

    expected = sum(likely(wrong) * grown(wrong, num_labels, promised=promised) for wrong in range(num_labels + 1))

    assert expected <= 1.0 + 1e-9


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=300), st.integers(0, 500), st.floats(0.01, 0.5))
def test_what_was_forgotten_never_raises_an_alarm(labels: list[bool], num_before: int, promised: float) -> None:
    whole = [False] * num_before + labels

    assert wealth(labels, promised=promised, num_before=num_before) <= wealth(whole, promised=promised) + 1e-9


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=200), st.floats(0.01, 0.5))
def test_a_wrong_label_raises_wealth_and_a_right_one_lowers_it(labels: list[bool], promised: float) -> None:
    before = wealth(labels, promised=promised)

    assert wealth([*labels, True], promised=promised) >= before - 1e-9
    assert wealth([*labels, False], promised=promised) <= before + 1e-9


def test_tightening_goes_on_until_there_is_nothing_left_to_tighten() -> None:
    bars, terms = [], tightened(Terms("static", 0.9, 25))
    while terms is not None:
        bars.append(terms.threshold)
        terms = tightened(terms)

    assert bars[:3] == pytest.approx([0.95, 0.975, 0.9875])
    assert bars[-1] < 1.0
    assert tightened(Terms("calibrated", 0.9, 25)) == Terms("calibrated", 0.9, 50)
    assert tightened(Terms("calibrated", 0.9, 1e6)) is None


def test_a_promise_is_one_over_the_price_of_a_wrong_answer() -> None:
    assert (promised_rate(25), promised_rate(1)) == (0.04, 0.5)


@pytest.mark.parametrize(
    ("num_hit", "num_all", "interval"),
    [
        (0, 0, (0.0, 1.0)),
        (0, 20, (0.0, 0.1684)),
        (1, 20, (0.0013, 0.2487)),
        (10, 20, (0.2720, 0.7280)),
        (20, 20, (0.8316, 1.0)),
        (40, 1000, (0.0287, 0.0541)),
    ],
)
def test_the_interval_is_clopper_and_pearsons(num_hit: int, num_all: int, interval: tuple[float, float]) -> None:
    assert exact_interval(num_hit, num_all) == pytest.approx(interval, abs=1e-4)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.001, 0.6), st.integers(1, 30))
def test_the_interval_covers_as_often_as_it_says(share: float, num_all: int) -> None:
    def covers(hit: int) -> bool:
        low, high = exact_interval(hit, num_all)
        return low <= share <= high

    covered = sum(_likelihood(hit, num_labels=num_all, rate=share) for hit in range(num_all + 1) if covers(hit))

    assert covered >= 0.95 - 1e-9


def _likelihood(wrong: int, *, num_labels: int, rate: float) -> float:
    return comb(num_labels, wrong) * rate**wrong * (1 - rate) ** (num_labels - wrong)
