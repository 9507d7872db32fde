from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.bench.engine.answer import Answer
from lab.bench.engine.figures import Objective, percentile, percentiles_ms, summarise


def _answer(begun_s: float, *, ttft_s: float, tpot_s: float, tokens: int = 11, error: str | None = None) -> Answer:
    times = [begun_s + ttft_s + tpot_s * number for number in range(tokens)]
    return Answer(begun_s=begun_s, ended_s=times[-1], token_times=times, output_tokens=tokens, error=error)


def test_a_run_is_summed_up_over_its_wall_time() -> None:
    answers = [_answer(0.0, ttft_s=0.1, tpot_s=0.01), _answer(0.8, ttft_s=0.1, tpot_s=0.01)]

    figures = summarise(answers, Objective())

    assert figures.wall_s == pytest.approx(1.0)
    assert figures.output_tokens_per_s == pytest.approx(22)
    assert figures.requests_per_s == pytest.approx(2)
    assert figures.ttft_ms["p50"] == pytest.approx(100)
    assert figures.tpot_ms["p99"] == pytest.approx(10)
    assert figures.itl_ms["p50"] == pytest.approx(10)
    assert figures.e2e_ms["p90"] == pytest.approx(200)


def test_what_came_to_no_end_counts_for_nothing_but_as_incomplete() -> None:
    answers = [_answer(0.0, ttft_s=0.1, tpot_s=0.01), _answer(0.0, ttft_s=0.1, tpot_s=0.09, error="gone")]

    figures = summarise(answers, Objective())

    assert figures.num_incomplete == 1
    assert figures.output_tokens == 11
    assert figures.errors == ["1 x gone"]
    assert figures.tpot_ms["p99"] == pytest.approx(10)
    assert figures.goodput_per_s == pytest.approx(figures.requests_per_s)


def test_a_run_that_gave_nothing_has_no_percentiles() -> None:
    figures = summarise([Answer(begun_s=0.0, ended_s=1.0, error="refused")], Objective())

    assert figures.ttft_ms == {}
    assert figures.output_tokens_per_s == 0


def test_goodput_counts_those_within_every_limit() -> None:
    objective = Objective.read("ttft:500,tpot:50")
    fast, late, slow = (
        _answer(0.0, ttft_s=ttft_s, tpot_s=tpot_s) for ttft_s, tpot_s in ((0.4, 0.04), (0.6, 0.04), (0.4, 0.06))
    )

    assert objective.is_met(fast)
    assert not objective.is_met(late)
    assert not objective.is_met(slow)
    assert not Objective.read("e2e:700").is_met(fast)


@pytest.mark.parametrize("text", ["itl:5", "ttft", "ttft:soon"])
def test_an_objective_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=text.partition(":")[2] or text):
        Objective.read(text)


@given(st.lists(st.floats(0, 1e6), min_size=2))
def test_percentiles_are_those_of_the_inclusive_method(values: list[float]) -> None:
    ordered = sorted(values)
    expected = statistics.quantiles(ordered, n=100, method="inclusive")

    for percent in (1, 50, 90, 99):
        assert percentile(ordered, percent) == pytest.approx(expected[percent - 1], rel=1e-9, abs=1e-9)


def test_what_was_not_timed_is_left_out() -> None:
    assert percentiles_ms([None, 0.001, None])["p50"] == pytest.approx(1.0)
