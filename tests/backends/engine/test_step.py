from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backends.engine.fakes import Bench, config, submission


def test_while_answers_run_prompts_take_no_more_than_their_share() -> None:
    bench = Bench(config(max_batched_tokens=16, prefill_share=0.5))
    first = bench.submit(submission(range(3), max_tokens=9))
    bench.step()
    second, third = (bench.submit(submission(range(n, n + 20), max_tokens=1)) for n in (10, 20))

    counts = [{row.key: row.count for row in bench.step().rows} for _ in range(3)]

    assert counts == [{first: 1, second: 8}, {first: 1, second: 8}, {first: 1, second: 4, third: 4}]


def test_without_answers_a_prompt_alone_takes_the_whole_step() -> None:
    bench = Bench(config(max_batched_tokens=16, prefill_share=0.5, chunk_share=0.25))
    bench.submit(submission(range(40), max_tokens=1))

    assert [bench.step().num_tokens for _ in range(3)] == [16, 16, 8]


def test_of_several_prompts_one_takes_no_more_than_its_share() -> None:
    bench = Bench(config(max_batched_tokens=16, chunk_share=0.75))
    long, short = bench.submit(submission(range(40), max_tokens=1)), bench.submit(submission([7] * 4, max_tokens=1))

    assert [(row.key, row.count) for row in bench.step().rows] == [(long, 12), (short, 4)]
    assert bench.outputs[short]


@settings(deadline=None)
@given(
    share=st.floats(0.01, 1.0),
    budget=st.integers(1, 40),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=12),
)
def test_the_shares_bound_every_step_and_stop_nobody(share: float, budget: int, lengths: list[int]) -> None:
    chosen = config(num_pages=200, max_batched_tokens=budget, prefill_share=share, chunk_share=share)
    bench = Bench(chosen)
    for number, length in enumerate(lengths):
        bench.submit(submission([number] * length, max_tokens=1 + number % 5))
    bench.finish()

    limit = max(1, int(share * chosen.max_batched_tokens))
    for decision in bench.runner.decisions:
        decodes = [row for row in decision.rows if row.start and row.count == 1 and row.draw]
        if len(decodes) < len(decision.rows) and decision.rows[0] in decodes:
            assert decision.num_tokens - len(decodes) <= limit
