"""What a step of the scheduler costs, counted in Python's own instructions, which no other process can disturb."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from backends.engine.sched.queue import POLICIES
from tests.backends.engine.fakes import Bench, config, submission

NUM_STEPS = 16  # two rounds in which those that wait are looked at though nobody came or went


class CountingTrace:
    """Count the instructions that Python runs while it is on."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> CountingTrace:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.count += event == "opcode"
        return self


def _count(work: Callable[[], object]) -> int:
    trace, before = CountingTrace(), sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return trace.count


def _fill(*, rows: int, waiting: int, **changes: object) -> Bench:
    settings = config(
        num_pages=4 * rows, page_size=16, max_len=64, max_num_seqs=rows, max_batched_tokens=4 * rows,
        max_waiting=20_000, prefix_cache=False, **changes,
    )  # fmt: skip
    bench = Bench(settings)
    for number in range(rows):
        bench.submit(submission([number % 40] * 4, max_tokens=60))
    bench.step()
    assert bench.scheduler.num_running == rows
    for number in range(waiting):
        bench.submit(submission([number % 40] * 4, max_tokens=60, salt=str(number)))
    return bench


def _step_cost(bench: Bench) -> float:
    total = 0
    for _ in range(NUM_STEPS):
        decisions = []
        total += _count(lambda: decisions.append(bench.scheduler.schedule()))  # noqa: B023 - it runs at once
        sampled = bench.runner.run(decisions[0])
        total += _count(lambda: bench.scheduler.apply(decisions[0], sampled))  # noqa: B023 - it runs at once
    return total / NUM_STEPS


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_step_costs_the_same_however_many_wait(policy: str) -> None:
    costs = [_step_cost(_fill(rows=16, waiting=count, policy=policy)) for count in (20, 1_000, 10_000)]

    assert max(costs) < 1.02 * min(costs)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_step_costs_the_same_however_many_wait_for_pages(policy: str) -> None:
    # Seats are free and pages are not, so those that wait are looked at again and again.
    costs = []
    for count in (20, 10_000):
        bench = _fill(rows=16, waiting=0, policy=policy, admission="reserve")
        bench.scheduler._config = config(max_num_seqs=64, page_size=16, num_pages=64, max_batched_tokens=64)
        for number in range(count):
            bench.submit(submission([number % 40] * 4, max_tokens=60, salt=str(number)))
        costs.append(_step_cost(bench))
        assert bench.scheduler.num_waiting == count

    assert max(costs) < 1.25 * min(costs)


def test_a_step_costs_in_proportion_to_its_rows() -> None:
    few, many = (_step_cost(_fill(rows=rows, waiting=100)) for rows in (16, 128))

    assert many < 8.5 * few


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_coming_and_going_cost_the_same_however_many_wait(policy: str) -> None:
    costs = []
    for count in (10, 10_000):
        bench = _fill(rows=4, waiting=count, policy=policy)
        arriving = submission([1] * 4, max_tokens=4, salt="new")
        cost = _count(lambda: bench.submit(arriving))  # noqa: B023 - it runs at once
        costs.append(cost + _count(lambda: bench.scheduler.abort(4 + count // 2)))  # noqa: B023 - it runs at once

    assert costs[1] < 2.5 * costs[0]  # a look-up among sorted ones takes ten comparisons more
