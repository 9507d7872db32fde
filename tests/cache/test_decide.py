from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.decide import Decision, bar_for, decide
from orchestration.core import Candidate

NEAR, LESS_NEAR, FAR = Candidate("near", 0.99), Candidate("less-near", 0.96), Candidate("far", 0.66)


def test_the_nearest_above_the_bar_is_served() -> None:
    assert decide([NEAR, LESS_NEAR, FAR], bar=0.95) == Decision("near", 0.99, "served")


def test_a_cosine_equal_to_the_bar_is_served() -> None:
    assert decide([LESS_NEAR], bar=0.96).entry == "less-near"


def test_nothing_below_the_bar_is_served() -> None:
    assert decide([FAR], bar=0.95) == Decision(None, 0.66, "below_bar")


def test_the_next_one_is_served_where_the_nearest_is_unusable() -> None:
    assert decide([NEAR, LESS_NEAR], bar=0.95, unusable={"near"}) == Decision("less-near", 0.96, "served")


def test_none_usable_is_told_apart_from_none_near() -> None:
    assert decide([NEAR, FAR], bar=0.95, unusable={"near"}) == Decision(None, 0.99, "unusable")


def test_no_candidates_is_a_miss() -> None:
    assert decide([], bar=0.95) == Decision(None, None, "no_candidates")


def test_zero_is_a_bar_and_not_unset() -> None:
    assert decide([FAR], bar=0.0).entry == "far"


@given(st.lists(st.floats(-1, 1), max_size=6), st.floats(-1, 1))
def test_what_is_served_reaches_the_bar(similarities: list[float], bar: float) -> None:
    ranked = sorted(similarities, reverse=True)
    decision = decide([Candidate(str(place), cosine) for place, cosine in enumerate(ranked)], bar=bar)

    assert (decision.entry is None) == all(cosine < bar for cosine in ranked)
    assert decision.entry is None or decision.similarity == ranked[0] >= bar


@pytest.mark.parametrize(("floor", "bar"), [(None, 0.95), (0.5, 0.95), (0.99, 0.99), (0.0, 0.95), (-1.0, 0.95)])
def test_a_request_may_only_raise_the_bar(floor: float | None, bar: float) -> None:
    assert bar_for(threshold=0.95, floor=floor) == bar
