from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace

import pytest

from lab.admission.machine import OPT_13B
from lab.admission.simulator import Result, Simulator, compare
from lab.admission.trace import TraceShape, make_trace

SHAPE = TraceShape(30, 48, mean_prompt_tokens=30, mean_output_tokens=40, max_tokens=128, max_prompt_tokens=128)
SMALL = replace(OPT_13B, kv_tokens=640)
"""A pool that holds a few answers only, so that a short trace is enough to fill it."""


@pytest.fixture(scope="module")
def results() -> Mapping[tuple[str, int], Result]:
    trace = make_trace(SHAPE, seed=1)
    return compare(SMALL, trace, admissions=("reserve", "greedy", "future_peak"), page_sizes=(1, 16))


def test_a_trace_has_the_rate_and_the_lengths_that_it_says() -> None:
    trace = make_trace(replace(SHAPE, num_requests=4000, max_prompt_tokens=100_000, max_tokens=100_000), seed=3)

    assert trace[-1].at_s == pytest.approx(4000 / 30, rel=0.05)
    assert statistics.fmean(each.prompt_tokens for each in trace) == pytest.approx(30, rel=0.05)
    assert statistics.fmean(each.output_tokens for each in trace) == pytest.approx(40, rel=0.05)
    assert trace == make_trace(replace(SHAPE, num_requests=4000, max_prompt_tokens=100_000, max_tokens=100_000), seed=3)


def test_every_answer_comes_whole_under_every_policy(results: Mapping[tuple[str, int], Result]) -> None:
    expected = sum(each.output_tokens for each in make_trace(SHAPE, seed=1))

    assert {result.output_tokens for result in results.values()} == {expected}


def test_reserving_never_preempts_and_wastes_nothing(results: Mapping[tuple[str, int], Result]) -> None:
    for page_size in (1, 16):
        assert results["reserve", page_size].preemptions == 0
        assert results["reserve", page_size].wasted_tokens == 0


def test_greed_preempts_and_what_it_took_away_is_computed_again(results: Mapping[tuple[str, int], Result]) -> None:
    for page_size in (1, 16):
        greedy = results["greedy", page_size]
        assert greedy.preemptions > 0
        assert greedy.wasted_tokens > 0


def test_forecasting_runs_more_at_once_than_reserving_and_wastes_less_than_greed(
    results: Mapping[tuple[str, int], Result],
) -> None:
    for page_size in (1, 16):
        reserve, greedy, peak = (results[name, page_size] for name in ("reserve", "greedy", "future_peak"))
        assert reserve.mean_running < peak.mean_running <= greedy.mean_running
        assert peak.wasted_tokens < greedy.wasted_tokens
        assert peak.output_tokens_per_s > reserve.output_tokens_per_s


def test_the_same_trace_gives_the_same_figures_again(results: Mapping[tuple[str, int], Result]) -> None:
    again = Simulator(SMALL, admission="future_peak", page_size=16).run(make_trace(SHAPE, seed=1))

    assert again == results["future_peak", 16]


def test_a_step_costs_the_weights_or_the_arithmetic_and_the_kv() -> None:
    one, many = (OPT_13B.cost_s(num_tokens=count, num_kv_tokens=0) for count in (1, 2048))

    assert one == pytest.approx(OPT_13B.step_s + OPT_13B.weights_s)
    assert many == pytest.approx(OPT_13B.step_s + 2048 * OPT_13B.token_s)
    assert OPT_13B.cost_s(num_tokens=1, num_kv_tokens=1000) == pytest.approx(one + 1000 * OPT_13B.kv_token_s)
