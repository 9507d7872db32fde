"""What gives way is kept outside the pool, where there is room, and brought back to the bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from backends.engine.config import EngineConfig
from backends.engine.model.loader import LoadedModel
from backends.engine.runner.runner import Runner
from backends.engine.sched.decision import Copy, Decision, Move
from backends.engine.sched.scheduler import Scheduler
from backends.engine.types import SamplingParams, Submission
from tests.backends.engine.fakes import Bench, answer, config, submission

Given = list[tuple[Sequence[int], object]]

GreedyCheck = Callable[[Sequence[int], Sequence[int]], None]


def test_a_preempted_request_is_brought_back_and_computes_nothing_again() -> None:
    bench = Bench(config(num_swap_pages=8, prefix_cache=False))
    key = bench.submit(submission(range(9), max_tokens=6))
    bench.step()
    bench.step()
    bench.scheduler.preempt(key)

    decision = bench.step()
    bench.finish()

    (row,) = decision.rows
    assert (row.start, row.count) == (10, 1)
    assert len(decision.saves) == len(decision.loads) == 3
    assert bench.tokens(key) == answer(range(9), 6)
    assert bench.scheduler.counters.swapped_out_pages == bench.scheduler.counters.swapped_in_pages == 3


def test_where_the_swap_space_is_short_it_is_computed_again() -> None:
    bench = Bench(config(num_swap_pages=2, prefix_cache=False))
    key = bench.submit(submission(range(9), max_tokens=6))
    bench.step()
    bench.scheduler.preempt(key)

    (row,) = bench.step().rows
    bench.finish()

    assert (row.start, row.count) == (0, 10)
    assert bench.tokens(key) == answer(range(9), 6)


def test_what_is_cached_is_not_brought_back_and_what_others_use_is_not_kept() -> None:
    bench = Bench(config(num_swap_pages=8, page_size=4))
    other = bench.submit(submission(range(8), max_tokens=20))
    bench.step()
    key = bench.submit(submission([*range(8), 9, 9], max_tokens=9))
    bench.step()
    bench.step()
    bench.scheduler.preempt(key)

    decision = bench.step()
    bench.finish()

    assert len(decision.saves) == 1  # the two pages before it are the other's as well
    assert len(decision.loads) == 1
    assert bench.tokens(key) == answer([*range(8), 9, 9], 9)
    assert bench.tokens(other) == answer(range(8), 20)


@pytest.mark.parametrize("end", ["abort", "fail"])
def test_one_that_ends_while_it_waits_frees_what_was_kept(end: str) -> None:
    bench = Bench(config(num_swap_pages=4, prefix_cache=False))
    key = bench.submit(submission(range(9), max_tokens=6))
    bench.step()
    bench.scheduler.preempt(key)
    assert bench.scheduler._swap.num_used == 3

    getattr(bench.scheduler, end)(key if end == "abort" else [key])

    bench.scheduler.check()
    assert bench.scheduler._swap.num_used == 0


def test_saves_of_a_step_that_raised_are_not_relied_on() -> None:
    bench = Bench(config(num_swap_pages=8, prefix_cache=False, max_num_seqs=1))
    low = bench.submit(submission(range(9), max_tokens=6))
    bench.step()
    bench.submit(submission([1, 2], max_tokens=1, priority=5))
    decision = bench.scheduler.schedule()
    assert decision.saves

    bench.scheduler.fail_step(decision)
    bench.finish()

    assert bench.tokens(low) == answer(range(9), 6)
    assert bench.scheduler.counters.swapped_in_pages == 0


def test_a_short_pool_with_a_swap_space_computes_each_token_once() -> None:
    bench = Bench(config(num_pages=12, admission="greedy", prefix_cache=False, num_swap_pages=64))
    asked = [([n] * 6, 18) for n in range(6)]
    keys = [bench.submit(submission(prompt, max_tokens=count)) for prompt, count in asked]
    bench.finish()

    assert bench.scheduler.counters.preemptions > 0
    assert [bench.tokens(key) for key in keys] == [answer(*each) for each in asked]
    assert sum(decision.num_tokens for decision in bench.runner.decisions) == sum(6 + count - 1 for _, count in asked)


def test_moves_happen_in_their_order_and_to_the_bit(tiny_model: LoadedModel) -> None:
    runner = Runner(tiny_model, num_pages=4, page_size=2, num_swap_pages=3)
    tensors = runner._store.tensors
    for tensor in tensors:
        tensor.copy_(torch.rand(tensor.shape))
    before = [tensor.clone() for tensor in tensors]

    # Page 0 is saved, then overwritten by a copy of 1, which is loaded over from where 0 went.
    runner.run(Decision(1, (), saves=(Move(0, 2),), copies=(Copy(1, 0, 1),), loads=(Move(2, 1),)))

    assert len(tensors) == 2 * tiny_model.shape.num_layers
    for tensor, old in zip(tensors, before, strict=True):
        assert torch.equal(tensor[0], old[1])
        assert torch.equal(tensor[1], old[0])
        assert torch.equal(tensor[2:], old[2:])


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("num_swap_pages", [3, 64])
def test_preempted_at_every_step_and_brought_back_gives_the_same_bits(
    tiny_model: LoadedModel, tiny_greedy: GreedyCheck, num_swap_pages: int, prefix_cache: bool
) -> None:
    settings = EngineConfig(
        vocab_size=97, max_len=256, eos_ids=frozenset(), num_pages=64, max_batched_tokens=512,
        prefix_cache=prefix_cache,
    )  # fmt: skip
    params = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True, logprobs=2)
    prompts = [list(range(begin, begin + length)) for begin, length in ((3, 5), (3, 20), (40, 33))]

    def answers(
        chosen: EngineConfig, *, is_preempted: bool
    ) -> tuple[dict[int, list[tuple[Sequence[int], object]]], int]:
        scheduler = Scheduler(chosen)
        runner = Runner(tiny_model, num_pages=chosen.num_pages, page_size=16, num_swap_pages=chosen.num_swap_pages)
        given: dict[int, Given] = {}
        for key, prompt in enumerate(prompts, start=1):
            scheduler.submit(key, Submission(tuple(prompt), params), seed=0)
            given[key] = []
            while scheduler.has_work:
                decision = scheduler.schedule()
                for output in scheduler.apply(decision, runner.run(decision)):
                    given[output.key].append((output.tokens, output.logprobs))
                if is_preempted:
                    scheduler.preempt(key)
                scheduler.check()
        return given, scheduler.counters.swapped_in_pages

    plain, _ = answers(settings, is_preempted=False)
    swapped, num_loaded = answers(replace(settings, num_swap_pages=num_swap_pages), is_preempted=True)

    assert swapped == plain  # logprobs and all: nothing was computed in another way
    assert num_loaded > 0
    for key, prompt in enumerate(prompts, start=1):
        tiny_greedy(prompt, [token for tokens, _ in plain[key] for token in tokens])
