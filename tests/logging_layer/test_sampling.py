"""What is left out is counted by what is not: the estimate is right in the mean, whatever the rates were."""

from __future__ import annotations

import math
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from ulid import ULID

from logging_layer.sampling import lowered, weight_of

NUM_CALLS = 1000
BACKLOGS = st.lists(st.integers(0, 400), min_size=1, max_size=12)


def call(draw: random.Random, *, outcome: str = "answered") -> dict[str, Any]:
    value = (1_790_000_000_000 << 80) | draw.getrandbits(80)
    return {"id": str(ULID.from_int(value)), "outcome": outcome, "cache": {"threshold": None}}


@settings(deadline=None, max_examples=30, derandomize=True)
@given(st.floats(0.05, 1.0), BACKLOGS, st.integers(0, 2**32))
def test_the_weights_of_what_is_sent_sum_up_to_all_calls_and_to_any_sum_over_them(
    rate: float, backlogs: list[int], seed: int
) -> None:
    draw = random.Random(seed)
    estimate = estimated_usd = total_usd = variance = variance_usd = 0.0
    for number in range(NUM_CALLS):
        now = lowered(rate, backlog_bytes=backlogs[number % len(backlogs)], bearable_bytes=100)
        cost_usd = draw.random()
        weight = weight_of(call(draw), rate=now)
        estimate, estimated_usd, total_usd = estimate + weight, estimated_usd + weight * cost_usd, total_usd + cost_usd
        variance, variance_usd = variance + (1 / now - 1), variance_usd + cost_usd**2 * (1 / now - 1)

    # Six standard deviations: one false alarm in 500 million examples.
    assert abs(estimate - NUM_CALLS) <= 6 * math.sqrt(variance) + 1e-6
    assert abs(estimated_usd - total_usd) <= 6 * math.sqrt(variance_usd) + 1e-6


def test_the_mean_over_all_draws_is_one_call_at_any_rate() -> None:
    draw = random.Random(7)
    calls = [call(draw) for _ in range(30_000)]

    for rate in (0.5, 0.1, 0.013):
        mean = sum(weight_of(each, rate=rate) for each in calls) / len(calls)

        assert abs(mean - 1.0) < 5 * math.sqrt((1 / rate - 1) / len(calls))


@settings(deadline=None)
@given(st.floats(0.0, 1.0), st.integers(0, 10**12), st.integers(0, 2**32))
def test_errors_and_blocks_are_never_left_out_and_count_as_themselves(rate: float, backlog: int, seed: int) -> None:
    now = lowered(rate, backlog_bytes=backlog, bearable_bytes=16)

    for outcome in ("error", "blocked"):
        assert weight_of(call(random.Random(seed), outcome=outcome), rate=now) == 1.0
