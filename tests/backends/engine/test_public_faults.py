"""Faults that other engines' users reported in public, each as a test that ours does not have it.

The numbers are those of vllm (v), sglang (s), nano-vllm (n), llama.cpp (l), and others by name.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.engine.config import EngineConfig
from backends.engine.core import EngineCore
from backends.engine.kv.cache import KvCache
from backends.engine.sample.logprobs import token_logprobs
from backends.engine.sample.sampler import draw_tokens
from backends.engine.sched.decision import Decision, Draw
from backends.engine.types import FinishReason, RefusalCode, Refused, Sampled, SamplingParams, Submission
from tests.backends.engine.fakes import VOCAB_SIZE, Bench, answer, config, submission


def _refusal(bench: Bench, prompt: Sequence[int], *, max_tokens: int = 4) -> Refused:
    with pytest.raises(Refused) as caught:
        bench.submit(submission(prompt, max_tokens=max_tokens))
    return caught.value


def test_v39734_a_prompt_within_the_context_and_beyond_the_pool_is_refused_and_stalls_nobody() -> None:
    bench = Bench(config(num_pages=5))

    assert _refusal(bench, range(30)).code is RefusalCode.NEVER_FITS
    behind = bench.submit(submission([1]))
    bench.finish()
    assert bench.tokens(behind) == answer([1], 4)


def test_v52530_the_check_counts_the_answer_too() -> None:
    settings = EngineConfig(vocab_size=50, max_len=2048, eos_ids=frozenset(), num_pages=69, page_size=16)
    bench = Bench(settings)

    assert _refusal(bench, [1] * 1081, max_tokens=25).code is RefusalCode.NEVER_FITS
    key = bench.submit(submission([1] * 1081, max_tokens=24))
    bench.finish()
    assert len(bench.tokens(key)) == 24
    assert bench.scheduler.counters.preemptions == 0


def test_freetoken111_a_prompt_longer_than_the_pool_gets_an_answer_at_once() -> None:
    bench = Bench(config(num_pages=8, max_len=64))

    assert "the KV pool holds 32" in _refusal(bench, range(34)).message
    assert not bench.scheduler.has_work


@pytest.mark.parametrize("admission", ["future_peak", "greedy", "reserve"])
def test_v18115_v21809_v21793_two_long_prompts_in_chunks_do_not_chase_each_other(admission: str) -> None:
    bench = Bench(config(num_pages=16, prefix_cache=False, max_batched_tokens=4, admission=admission))
    keys = [bench.submit(submission([n] * 48, max_tokens=8)) for n in (1, 2)]
    num_steps = 0
    while bench.scheduler.has_work:
        bench.step()
        num_steps += 1

    assert num_steps < 2 * (12 + 8) + 4  # each prompt was computed once
    assert [bench.tokens(key) for key in keys] == [answer([n] * 48, 8) for n in (1, 2)]


@settings(max_examples=60, deadline=None)
@given(
    asked=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 20), st.integers(1, 20)), min_size=4, max_size=24),
    admission=st.sampled_from(["future_peak", "greedy"]),
    num_swap_pages=st.sampled_from([0, 4, 64]),
    overlap=st.booleans(),
)
def test_v45388_every_step_moves_the_progress_key_under_cache_pressure_with_and_without_a_swap_space(
    asked: list[tuple[int, int, int]], admission: str, num_swap_pages: int, overlap: bool
) -> None:
    bench = Bench(config(num_pages=12, admission=admission, num_swap_pages=num_swap_pages), overlap=overlap)
    for text, length, max_tokens in asked:
        bench.submit(submission([(text + n) % 40 for n in range(length)], max_tokens=max_tokens))

    bench.finish(max_steps=2000)  # it asserts that each step changes the key


@pytest.mark.parametrize("count", [256, 512])
def test_n211_n233_preempted_with_a_prefix_in_the_cache_in_a_crowd(count: int) -> None:
    settings = config(
        num_pages=90, max_num_seqs=64, max_batched_tokens=64, max_waiting=count, admission="greedy", page_size=2
    )
    bench = Bench(settings)
    prompts = [[1, 2, 3, 4, number % 7] for number in range(count)]
    keys = [bench.submit(submission(prompt, max_tokens=6 + number % 9)) for number, prompt in enumerate(prompts)]
    bench.finish()

    assert bench.scheduler.counters.preemptions > 0
    for number, (key, prompt) in enumerate(zip(keys, prompts, strict=True)):
        assert bench.tokens(key) == answer(prompt, 6 + number % 9)


def test_n144_a_cached_prompt_of_whole_pages_still_has_a_token_to_compute() -> None:
    bench = Bench(config())
    for _ in range(2):
        bench.submit(submission(range(16), max_tokens=1))
        bench.finish()

    assert [row.count for row in bench.runner.decisions[-1].rows] == [1]


def test_n144_a_preempted_request_is_told_from_a_decode_by_what_is_pending() -> None:
    bench = Bench(config(prefix_cache=False))
    key = bench.submit(submission(range(5), max_tokens=6))
    bench.step()
    bench.step()
    bench.scheduler.preempt(key)

    (row,) = bench.step().rows

    assert (row.start, row.count) == (0, 7)
    bench.finish()
    assert bench.tokens(key) == answer(range(5), 6)


def test_n163_a_page_given_anew_is_found_under_its_old_tokens_no_more() -> None:
    kv = KvCache(num_pages=2, page_size=1, prefix_cache=True)
    for tokens in ([1, 2], [3, 4]):
        holding = kv.open("", tokens)
        assert kv.grow(holding, 2)
        kv.close(holding, tokens, num_computed=2)

    assert kv.peek("", [1, 2, 0]).num_pages == 0
    assert kv.peek("", [3, 4, 0]).num_pages == 2


def test_sglang_jax982_s12224_nothing_is_freed_twice_when_requests_end_in_any_way() -> None:
    bench = Bench(config())
    keys = [bench.submit(submission(range(9), max_tokens=3)) for _ in range(4)]
    bench.step()
    bench.scheduler.abort(keys[0])
    bench.scheduler.preempt(keys[1])
    bench.scheduler.abort(keys[1])
    bench.scheduler.fail([keys[2]])
    for key in keys:
        bench.scheduler.fail([key])
        bench.scheduler.abort(key)

    bench.scheduler.check()
    assert bench.num_used == 0


@pytest.mark.parametrize("num_swap_pages", [0, 16])
def test_sglang_jax982_s12224_a_step_planned_beyond_the_end_frees_nothing_twice(num_swap_pages: int) -> None:
    bench = Bench(config(num_swap_pages=num_swap_pages), overlap=True)
    stop = answer(range(9), 3)[2]
    keys = [bench.submit(submission(range(9), max_tokens=9, stop_ids=[stop])) for _ in range(3)]
    keys += [bench.submit(submission(range(20, 29), max_tokens=9)) for _ in range(2)]
    for number in range(3):
        bench.step()
        bench.scheduler.preempt(keys[number])
    bench.scheduler.abort(keys[3])
    bench.finish()

    for key in keys[:3]:
        assert bench.tokens(key) == answer(range(9), 9, stop_ids=[stop])
    assert bench.tokens(keys[4]) == answer(range(20, 29), 9)
    assert bench.num_used == 0
    assert bench.scheduler._swap.num_used == 0


def test_s35270_pages_shared_by_many_count_once_as_evictable() -> None:
    bench = Bench(config())
    for _ in range(2):
        for _ in range(4):
            bench.submit(submission(range(12), max_tokens=2))
        bench.finish()

    bench.scheduler.check()
    pool, tree = bench.scheduler.kv.pool, bench.scheduler.kv.tree
    assert tree.num_evictable == pool.num_cached
    assert pool.num_free + pool.num_cached == pool.num_pages


def test_s33210_s31954_longest_prefix_first_starves_nobody() -> None:
    bench = Bench(config(policy="longest_prefix", max_num_seqs=2, max_overtakes=8, max_waiting=5000))
    bench.submit(submission(range(12), max_tokens=1))
    bench.finish()
    cold = [bench.submit(submission([n] * 8, max_tokens=1)) for n in (30, 31)]
    warm = [bench.submit(submission([*range(12), n % 40], max_tokens=1)) for n in range(200)]
    order = bench.admissions()

    assert [order.index(key) for key in cold] == [8, 9]
    assert len(order) == len(cold) + len(warm)


def test_v45561_v40004_a_higher_priority_does_not_wait_for_a_seat_of_a_lower() -> None:
    bench = Bench(config(max_num_seqs=2))
    low = [bench.submit(submission([n], max_tokens=40)) for n in (1, 2)]
    bench.step()
    high = bench.submit(submission([3], max_tokens=2, priority=5))

    bench.step()

    assert bench.outputs[high]
    bench.finish()
    assert [bench.tokens(key) for key in low] == [answer([n], 40) for n in (1, 2)]


def test_l23652_many_who_each_want_the_whole_context_end_nobody() -> None:
    bench = Bench(config(num_pages=17, max_len=64, admission="greedy"))
    keys = [bench.submit(submission([n], max_tokens=63)) for n in range(4)]
    bench.finish()

    assert [bench.tokens(key) for key in keys] == [answer([n], 63) for n in range(4)]
    assert all(bench.outputs[key][-1].finish is FinishReason.LENGTH for key in keys)


def test_sglang_jax1551_settings_that_contradict_each_other_are_brought_into_line() -> None:
    bench = Bench(config(max_num_seqs=8, max_batched_tokens=1, prefill_share=0.01, chunk_share=0.01))
    keys = [bench.submit(submission([n] * 20, max_tokens=3)) for n in range(12)]
    bench.finish()

    assert [bench.tokens(key) for key in keys] == [answer([n] * 20, 3) for n in range(12)]


def test_v15996_a_step_with_running_requests_is_never_empty() -> None:
    bench = Bench(config(num_pages=8, admission="greedy"))
    for number in range(12):
        bench.submit(submission([number] * 6, max_tokens=20))
    while bench.scheduler.has_work:
        assert bench.step().rows


def test_openvino3722_prefixes_are_told_apart_by_their_tokens_not_by_a_hash() -> None:
    kv = KvCache(num_pages=4, page_size=2, prefix_cache=True)
    tokens, others = (-1, 5), (-2, 5)  # no ids of a model, but the hashes of these are equal
    assert hash(tokens) == hash(others)
    holding = kv.open("", tokens)
    assert kv.grow(holding, 2)
    kv.close(holding, tokens, num_computed=2)

    assert kv.peek("", (*tokens, 0)).num_pages == 1
    assert kv.peek("", (*others, 0)).num_pages == 0


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_v39146_v37076_pressure_cancelling_and_asking_again_change_no_greedy_answer(seed: int) -> None:
    draw = random.Random(seed)
    bench = Bench(config(num_pages=10, admission="greedy", max_num_seqs=5))
    texts = [[draw.randrange(4) for _ in range(draw.randint(1, 16))] for _ in range(3)]
    wanted: dict[int, tuple[int, ...]] = {}
    for _ in range(60):
        match draw.randrange(4):
            case 0:
                prompt, count = draw.choice(texts), draw.randint(1, 20)
                wanted[bench.submit(submission(prompt, max_tokens=count))] = answer(prompt, count)
            case 1 if wanted:
                key = draw.choice(list(wanted))
                if bench.scheduler.abort(key):
                    wanted[key] = wanted[key][: len(bench.tokens(key))]
            case _:
                bench.step()
    bench.finish()

    assert {key: bench.tokens(key) for key in wanted} == wanted


def _draw(seed: int, position: int = 5, **changes: float) -> Draw:
    return Draw(SamplingParams(max_tokens=1, **changes), seed, position)  # type: ignore[arg-type]


def test_v51226_a_seeded_draw_stays_the_same_beside_unseeded_ones() -> None:
    logits = torch.randn(1, 500, generator=torch.Generator().manual_seed(1))
    alone = draw_tokens(logits, [_draw(7)])[0]

    for other in range(20):
        assert draw_tokens(logits.repeat(3, 1), [_draw(other), _draw(7), _draw(-other)])[1] == alone


class RecordingRunner:
    """Remember the draws, and draw zeros."""

    def __init__(self) -> None:
        self.draws: list[Draw] = []

    def run(self, decision: Decision) -> Sequence[Sampled]:
        """Remember, and draw."""
        self.draws.extend(row.draw for row in decision.rows if row.draw is not None)
        return [Sampled(row.key, 0) for row in decision.rows if row.draw is not None]


def test_mlx_vlm1818_equal_prompts_without_a_seed_get_different_draws() -> None:
    source, runner = random.Random(0), RecordingRunner()
    core = EngineCore(config(), runner, new_seed=lambda: source.getrandbits(63))
    for _ in range(4):
        core.submit(Submission((1, 2, 3), SamplingParams(max_tokens=1)))
    core.step()
    logits = torch.zeros(4, 1000)

    assert len({draw.seed for draw in runner.draws}) == 4
    assert len(set(draw_tokens(logits, runner.draws))) > 1


def test_v14512_v20580_answers_to_one_prompt_end_apart_and_are_aborted_apart() -> None:
    bench = Bench(config())
    keys = [bench.submit(submission(range(6), max_tokens=count)) for count in (2, 9, 5)]
    bench.step()
    bench.scheduler.abort(keys[1])
    bench.finish()

    assert bench.tokens(keys[0]) == answer(range(6), 2)
    assert len(bench.tokens(keys[1])) == 1
    assert bench.tokens(keys[2]) == answer(range(6), 5)
    assert bench.num_used == 0


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 1.0, 1e9])
def test_v4149_s20323_s4097_logprobs_are_always_finite_numbers(temperature: float) -> None:
    logits = torch.full((1, 50), -torch.inf)
    logits[0, 3] = 2.0

    (token,) = draw_tokens(logits, [_draw(1, temperature=temperature)])
    (logprobs,) = token_logprobs(logits, [3], [5])

    assert token == 3
    assert all(torch.isfinite(torch.tensor([logprobs.logprob, *(value for _, value in logprobs.top)])))


def test_nemo_rl2962_logits_that_are_no_numbers_draw_nothing() -> None:
    logits = torch.zeros(2, 50)
    logits[0, 7] = torch.nan

    broken, sound = draw_tokens(logits, [_draw(1), _draw(1)])

    assert broken is None
    assert sound is not None


def test_v10234_no_hidden_token_is_drawn_for_max_tokens_of_zero() -> None:
    bench = Bench(config())

    assert _refusal(bench, [1], max_tokens=0).code is RefusalCode.BAD_PARAMS
    assert bench.scheduler.counters.generated_tokens == 0


def test_v7283_v7632_v1130_v7746_an_empty_prompt_is_refused_and_harms_nobody() -> None:
    bench = Bench(config())
    running = bench.submit(submission([1], max_tokens=3))
    bench.step()

    assert _refusal(bench, []).code is RefusalCode.BAD_PARAMS
    bench.finish()
    assert bench.tokens(running) == answer([1], 3)


def test_a_priority_beyond_reason_is_refused_by_name() -> None:
    bench = Bench(config())
    with pytest.raises(Refused, match="priority is 1000000") as refusal:
        bench.submit(submission([VOCAB_SIZE - 1], priority=10**6))

    assert refusal.value.code is RefusalCode.BAD_PARAMS
