"""Strategies: the order follows from the recorded situation alone."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.core.balance import Option, Order, Situation, Strategy, choose, credits_after, situation_of

OPTIONS = st.lists(
    st.builds(
        Option,
        id=st.uuids().map(str),
        weight=st.floats(0.01, 100),
        in_flight=st.integers(0, 1000),
        latency_ms=st.none() | st.floats(0, 1e6),
        expected_usd=st.floats(0, 10),
        credit=st.floats(-100, 100),
        cooled_s=st.sampled_from([0.0, 0.0, 0.0, 1.5, 30.0]),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda one: one.id,
)
DRAW = st.floats(0, 1, exclude_max=True)
SITUATIONS = st.builds(
    Situation,
    strategy=st.sampled_from(Strategy),
    options=OPTIONS.map(tuple),
    turn=st.integers(0, 10**9),
    draws=st.tuples(DRAW, DRAW),
    affinity=st.text(max_size=16),
)


def situation(strategy: Strategy, *options: Option, turn: int = 0, affinity: str = "") -> Situation:
    return Situation(strategy=strategy, options=options, turn=turn, affinity=affinity)


@given(SITUATIONS)
def test_every_backend_is_asked_once_and_those_left_alone_come_last(moment: Situation) -> None:
    order = choose(moment)

    assert sorted((*order.ready, *order.cooled)) == list(range(len(moment.options)))
    assert all(moment.options[index].cooled_s == 0 for index in order.ready)
    waits = [moment.options[index].cooled_s for index in order.cooled]
    assert waits == sorted(waits)


@given(SITUATIONS)
def test_a_decision_is_computed_again_from_its_record(moment: Situation) -> None:
    record = json.loads(json.dumps(moment.record()))

    assert choose(situation_of(record)) == choose(moment)


def test_turns_go_round_among_those_that_are_ready() -> None:
    options = (Option("a"), Option("b", cooled_s=5.0), Option("c"))

    firsts = [choose(situation(Strategy.ROUND_ROBIN, *options, turn=turn)).ready[0] for turn in range(4)]

    assert firsts == [0, 2, 0, 2]


def test_weights_are_kept_smoothly() -> None:
    moment = situation(Strategy.WEIGHTED, Option("a", weight=5), Option("b", weight=1), Option("c", weight=1))
    chosen = []

    for _ in range(14):
        order = choose(moment)
        chosen.append("abc"[order.ready[0]])
        credits = credits_after(moment, order)
        moment = replace(
            moment, options=tuple(replace(one, credit=new) for one, new in zip(moment.options, credits, strict=True))
        )

    assert "".join(chosen) == "aabacaa" * 2


def test_who_is_left_alone_saves_up_no_credit() -> None:
    moment = situation(Strategy.WEIGHTED, Option("a"), Option("b", cooled_s=1.0))

    assert credits_after(moment, Order((0,), (1,))) == (0.0, 0.0)


def test_the_least_loaded_for_its_weight_is_first() -> None:
    options = (Option("a", in_flight=4, weight=4), Option("b", in_flight=2), Option("c", in_flight=3))

    assert choose(situation(Strategy.LEAST_CONNECTIONS, *options)).ready == (0, 1, 2)


def test_equally_loaded_ones_take_turns() -> None:
    options = (Option("a"), Option("b"))

    assert [choose(situation(Strategy.LEAST_CONNECTIONS, *options, turn=turn)).ready[0] for turn in (0, 1)] == [0, 1]


def test_the_faster_of_two_drawn_is_first_and_no_one_takes_all() -> None:
    options = (Option("slow", latency_ms=900.0), Option("mid", latency_ms=300.0), Option("fast", latency_ms=100.0))
    rng = random.Random(1)
    firsts: Counter[str] = Counter()

    for _ in range(900):
        moment = replace(situation(Strategy.LATENCY, *options), draws=(rng.random(), rng.random()))
        firsts[options[choose(moment).ready[0]].id] += 1

    assert firsts["slow"] == 0
    assert 500 < firsts["fast"] < 700  # two of three pairs hold it
    assert 200 < firsts["mid"] < 400


def test_load_counts_against_a_fast_backend_and_the_unmeasured_is_measured() -> None:
    loaded = (Option("fast", latency_ms=100.0, in_flight=9), Option("slow", latency_ms=300.0, in_flight=1))
    fresh = (Option("known", latency_ms=1.0), Option("new"))

    assert choose(situation(Strategy.LATENCY, *loaded)).ready == (1, 0)
    assert choose(situation(Strategy.LATENCY, *fresh)).ready == (1, 0)


def test_the_cheapest_is_first() -> None:
    options = (Option("a", expected_usd=0.2), Option("b", expected_usd=0.1), Option("c", expected_usd=0.3))

    assert choose(situation(Strategy.COST, *options, turn=2)).ready == (1, 0, 2)


def test_equal_beginnings_go_to_one_backend_and_a_lost_one_moves_its_own_share_alone() -> None:
    three = tuple(Option(name) for name in "abc")
    before = [choose(situation(Strategy.PREFIX, *three, affinity=str(key))).ready for key in range(300)]
    after = [choose(situation(Strategy.PREFIX, *three[:2], affinity=str(key))).ready for key in range(300)]

    assert all(new[0] == old[0] for old, new in zip(before, after, strict=True) if old[0] != 2)
    shares = Counter(order[0] for order in before)
    assert all(70 < shares[index] < 130 for index in range(3))


@pytest.mark.parametrize(("in_flight", "stays"), [(2, True), (9, False)])
def test_an_overrun_backend_is_passed_by(in_flight: int, stays: bool) -> None:
    idle = (Option("a"), Option("b"))
    home = choose(situation(Strategy.PREFIX, *idle, affinity="x")).ready[0]
    busy = tuple(replace(one, in_flight=in_flight if index == home else 1) for index, one in enumerate(idle))

    assert (choose(situation(Strategy.PREFIX, *busy, affinity="x")).ready[0] == home) is stays
