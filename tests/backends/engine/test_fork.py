"""Where two texts part inside a page, the later one copies what they share."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.engine.kv.cache import KvCache
from backends.engine.sched.decision import Copy
from tests.backends.engine.fakes import Bench, answer, config, submission


def _known(kv: KvCache, tokens: list[int]) -> tuple[int, int]:
    match = kv.peek("", tokens)
    return match.num_pages, match.num_forked


def _fill(kv: KvCache, tokens: list[int]) -> list[int]:
    holding = kv.open("", tokens)
    assert kv.grow(holding, len(tokens))
    pages = list(holding.pages)
    kv.close(holding, tokens, num_computed=len(tokens))
    return pages


def test_a_text_that_parts_inside_a_page_copies_its_first_tokens_and_computes_the_rest() -> None:
    bench = Bench(config(page_size=4))
    first = bench.submit(submission(range(12), max_tokens=2))
    bench.finish()

    second = bench.submit(submission([*range(10), 30, 31], max_tokens=3))
    decision = bench.step()
    bench.finish()

    (copy,) = decision.copies
    (row,) = decision.rows
    assert (row.start, row.count, copy.num_slots) == (10, 2, 2)
    assert copy.target == row.pages[2] != copy.source
    assert bench.outputs[second][0].cached_prompt_tokens == 10
    assert bench.scheduler.counters.prefix_copied_tokens == 2
    assert [bench.tokens(key) for key in (first, second)] == [
        answer(range(12), 2),
        answer([*range(10), 30, 31], 3),
    ]


def test_a_shared_page_is_never_written_to() -> None:
    bench = Bench(config(page_size=4))
    bench.submit(submission(range(12), max_tokens=1))
    bench.finish()
    shared = set(bench.scheduler.kv.tree.pages())

    for last in range(20, 30):
        bench.submit(submission([*range(9), last], max_tokens=6))
    while bench.scheduler.has_work:
        decision = bench.step()
        written = {row.pages[at // 4] for row in decision.rows for at in range(row.start, row.end)}
        assert shared.isdisjoint(written | {copy.target for copy in decision.copies})


def test_the_nearest_of_many_children_is_copied_from() -> None:
    kv = KvCache(num_pages=64, page_size=4, prefix_cache=True)
    pages = {tuple(each): _fill(kv, each)[0] for each in ([1, 2, 3, 4], [1, 2, 5, 5], [1, 9, 9, 9], [7, 7, 7, 7])}

    assert _known(kv, [1, 2, 5, 6, 0]) == (0, 3)
    assert kv.peek("", [1, 2, 5, 6, 0]).fork_page == pages[1, 2, 5, 5]
    assert _known(kv, [1, 2, 0]) == (0, 2)
    assert _known(kv, [1, 8, 0]) == (0, 1)
    assert _known(kv, [6, 0]) == (0, 0)
    assert _known(kv, [1, 2, 3, 4, 1]) == (1, 0)
    assert _known(kv, [1, 2, 3, 4]) == (0, 3)  # the last token is always computed


def test_pages_of_one_token_are_shared_and_never_copied() -> None:
    bench = Bench(config(page_size=1, num_pages=64))
    for _ in range(2):
        bench.submit(submission(range(9), max_tokens=2))
        bench.finish()

    assert bench.scheduler.counters.prefix_hit_tokens == 8
    assert bench.scheduler.counters.prefix_copied_tokens == 0


def test_a_copy_outlives_the_page_that_it_is_made_of() -> None:
    # The only free page is the one that is copied from: it is evicted, given anew, and copied onto itself.
    bench = Bench(config(page_size=4, num_pages=2))
    bench.submit(submission(range(6), max_tokens=1))
    bench.finish()

    key = bench.submit(submission([0, 1, 2, 9, 9], max_tokens=2))
    decision = bench.step()
    bench.finish()

    assert decision.copies == (Copy(0, 0, 3),) or decision.copies[0].num_slots == 3
    assert bench.tokens(key) == answer([0, 1, 2, 9, 9], 2)


def test_one_that_gives_way_in_the_step_that_it_starts_in_copies_nothing_and_comes_back() -> None:
    bench = Bench(config(page_size=4, max_num_seqs=1))
    bench.submit(submission(range(12), max_tokens=1))
    bench.finish()
    key = bench.submit(submission([*range(10), 40], max_tokens=3))
    decision = bench.scheduler.schedule()
    assert decision.copies
    bench.scheduler.apply(decision, bench.runner.run(decision))
    bench.scheduler.preempt(key)
    bench.scheduler.check()
    bench.finish()

    assert bench.tokens(key)[-2:] == answer([*range(10), 40], 3)[-2:]


@pytest.mark.parametrize("overlap", [False, True])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), num_pages=st.integers(10, 40), page_size=st.sampled_from([3, 8]))
def test_a_storm_of_forks_under_pressure_changes_no_answer(
    overlap: bool, seed: int, num_pages: int, page_size: int
) -> None:
    draw = random.Random(seed)
    bench = Bench(
        config(num_pages=num_pages, page_size=page_size, admission="greedy", num_swap_pages=draw.choice([0, 6])),
        overlap=overlap,
    )
    trunk, wanted = [draw.randrange(40) for _ in range(16)], {}
    for _ in range(30):
        prompt = [*trunk[: draw.randint(1, 16)], draw.randrange(40)]
        count = draw.randint(1, 10)
        wanted[bench.submit(submission(prompt, max_tokens=count))] = answer(prompt, count)
        for _ in range(draw.randrange(3)):
            bench.step()
        bench.scheduler.preempt(draw.choice(list(wanted)))
    bench.finish()

    assert {key: bench.tokens(key) for key in wanted} == wanted
    assert bench.scheduler.counters.prefix_copied_tokens > 0
    assert bench.num_used == 0
