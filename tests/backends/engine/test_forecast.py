from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.engine.config import EngineConfig
from backends.engine.kv.cache import Holding, KvCache
from backends.engine.sched.admission import Demand, peak_usage
from backends.engine.sched.forecast import Forecast
from backends.engine.sched.request import Request
from backends.engine.types import SamplingParams, Submission
from tests.backends.engine.fakes import Bench, config, submission


def _usage(holders: Sequence[tuple[Request, Holding]], page_size: int) -> int:
    """Return the largest number of distinct pages held at any time, counted page by page."""
    peak = 0
    for time in range(1 + max(request.num_allowed - 1 for request, _ in holders)):
        shared: set[int] = set()
        own = 0
        for request, holding in holders:
            if request.num_allowed - 1 >= time:
                shared.update(holding.pages[: holding.num_shared])
                own += math.ceil((len(request.tokens) + time) / page_size) - holding.num_shared
        peak = max(peak, own + len(shared))
    return peak


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), page_size=st.sampled_from([1, 2, 4]))
def test_the_predicted_peak_counts_every_page_once_for_as_long_as_anybody_holds_it(seed: int, page_size: int) -> None:
    draw = random.Random(seed)
    chosen = config(num_pages=400, page_size=page_size, max_len=1000)
    kv = KvCache(num_pages=400, page_size=page_size, prefix_cache=True)
    holders: list[tuple[Request, Holding]] = []
    predicted: list[int] = []

    def remember(running: Sequence[Demand], candidate: Demand, capacity: int, size: int) -> bool:
        predicted.append(peak_usage([*running, candidate], size) // size)
        return True

    def forecast() -> Forecast:
        return Forecast(
            (request for request, _ in holders),
            config=chosen,
            admission=remember,
            remaining=lambda each: each.num_allowed,
        )

    current, num_nodes = forecast(), 0
    for key in range(draw.randint(2, 8)):
        prompt = tuple(draw.randrange(2) for _ in range(draw.randint(1, 14)))
        request = Request(key, Submission(prompt, SamplingParams(max_tokens=draw.randint(1, 20))), 0)
        match = kv.peek("", prompt)
        assert current.admits(request, match)
        current.add(request, match)
        holding = request.holding = kv.open("", prompt)
        assert len(holding.pages) == match.num_pages
        assert kv.grow(holding, len(prompt))
        holders.append((request, holding))
        if len(holders) > 1:
            assert predicted[-1] == _usage(holders, page_size)
        if draw.random() < 0.7:
            kv.publish(holding, prompt, len(prompt))
            current = forecast()
        elif kv.tree.num_nodes != num_nodes:
            current = forecast()
        num_nodes = kv.tree.num_nodes


@settings(max_examples=100, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 12), st.integers(1, 20)), min_size=2, max_size=20),
    num_pages=st.integers(8, 40),
    page_size=st.sampled_from([1, 4]),
)
def test_where_predictions_hold_nobody_is_preempted(
    requests: list[tuple[int, int, int]], num_pages: int, page_size: int
) -> None:
    # Prompts are computed in one step, and every answer gets as long as is allowed.
    settings = config(
        num_pages=num_pages * 4 // page_size, page_size=page_size, max_num_seqs=20, max_batched_tokens=400
    )
    bench = Bench(settings)
    for text, length, max_tokens in requests:
        bench.submit(submission([(text + n) % 40 for n in range(length)], max_tokens=max_tokens))
    bench.finish()

    assert bench.scheduler.counters.preemptions == 0
    assert bench.scheduler.counters.finished == len(requests)


def test_the_two_worked_admissions_hold_in_the_scheduler() -> None:
    # 500+100, 300+400, 800+50 peak at 1,750 tokens; 400+300 more make 2,200, and 2,850 reserved.
    asked = [(500, 100), (300, 400), (800, 50), (400, 300)]

    def running(admission: str, num_pages: int) -> int:
        settings = EngineConfig(
            vocab_size=50, max_len=2000, eos_ids=frozenset(), num_pages=num_pages, page_size=1, max_num_seqs=4,
            max_batched_tokens=4000, admission=admission, prefix_cache=False,
        )  # fmt: skip
        bench = Bench(settings)
        for number, (current, remaining) in enumerate(asked):
            bench.submit(submission([number] * current, max_tokens=remaining + 1))  # the last is never computed
        return len(bench.step().rows)

    assert running("future_peak", 2600) == 4
    assert running("future_peak", 2200) == 4
    assert running("future_peak", 2199) == 3
    assert running("future_peak", 1750) == 3
    assert running("reserve", 2600) == 3
    assert running("reserve", 2850) == 4


@pytest.mark.parametrize("page_size", [1, 16])
def test_the_predicted_peak_is_what_is_held_at_the_worst_step(page_size: int) -> None:
    settings = EngineConfig(
        vocab_size=50, max_len=2000, eos_ids=frozenset(), num_pages=4096 // page_size, page_size=page_size,
        max_num_seqs=4, max_batched_tokens=4000, prefix_cache=False,
    )  # fmt: skip
    asked = [(50, 10), (30, 40), (80, 5), (40, 30)]
    bench = Bench(settings)
    for number, (current, remaining) in enumerate(asked):
        bench.submit(submission([number] * current, max_tokens=remaining + 1))
    held = []
    while bench.scheduler.has_work:
        decision = bench.scheduler.schedule()
        held.append(bench.num_used * page_size)
        bench.scheduler.apply(decision, bench.runner.run(decision))

    assert max(held) == peak_usage([Demand(*each) for each in asked], page_size)
