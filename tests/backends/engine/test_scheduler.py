from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.engine.config import EngineConfig
from backends.engine.sched.admission import ADMISSIONS
from backends.engine.sched.queue import POLICIES
from backends.engine.types import FinishReason, RefusalCode, Refused, Sampled, SamplingParams, Submission
from tests.backends.engine.fakes import EOS, VOCAB_SIZE, Bench, answer, config, submission


def test_one_request_gets_its_answer_and_leaves_nothing_held() -> None:
    bench = Bench(config())

    key = bench.submit(submission(range(10), max_tokens=5))
    bench.finish()

    assert bench.tokens(key) == answer(range(10), 5)
    assert bench.outputs[key][-1].finish is FinishReason.LENGTH
    assert bench.num_used == 0


def test_decodes_come_first_and_prompts_fill_the_rest_of_the_budget() -> None:
    bench = Bench(config(max_batched_tokens=8))
    first = bench.submit(submission(range(3), max_tokens=9))
    bench.step()
    second = bench.submit(submission(range(20, 40), max_tokens=2))

    decision = bench.step()

    assert [(row.key, row.start, row.count) for row in decision.rows] == [(first, 3, 1), (second, 0, 7)]
    assert decision.rows[0].draw is not None
    assert decision.rows[1].draw is None


def test_a_long_prompt_does_not_stall_running_decodes() -> None:
    bench = Bench(config(max_batched_tokens=4))
    first = bench.submit(submission(range(3), max_tokens=9))
    bench.step()
    bench.submit(submission(range(40), max_tokens=1))

    for _ in range(8):
        bench.step()

    assert len(bench.tokens(first)) == 9


def test_a_shared_prefix_is_computed_once() -> None:
    bench = Bench(config())
    first = bench.submit(submission(range(12), max_tokens=2))
    bench.finish()

    second = bench.submit(submission([*range(12), 30], max_tokens=2))
    bench.finish()

    assert bench.outputs[first][0].cached_prompt_tokens == 0
    assert bench.outputs[second][0].cached_prompt_tokens == 12
    assert bench.tokens(second) == answer([*range(12), 30], 2)


def test_a_prefix_is_shared_while_its_first_owner_still_runs() -> None:
    bench = Bench(config())
    bench.submit(submission(range(12), max_tokens=20))
    bench.step()

    second = bench.submit(submission([*range(12), 30], max_tokens=2))
    bench.step()

    assert bench.outputs[second][0].cached_prompt_tokens == 12


def test_an_equal_prompt_of_whole_pages_still_computes_its_last_token() -> None:
    bench = Bench(config())
    for _ in range(2):
        key = bench.submit(submission(range(8), max_tokens=2))
        bench.finish()

    assert bench.outputs[key][0].cached_prompt_tokens == 7  # a page, and a copy of all but the last token of the next
    assert bench.tokens(key) == answer(range(8), 2)


def test_salts_never_share() -> None:
    bench = Bench(config())
    for salt in ("a", "b"):
        key = bench.submit(submission(range(12), salt=salt))
        bench.finish()

    assert bench.outputs[key][0].cached_prompt_tokens == 0


def test_without_the_prefix_cache_nothing_is_kept() -> None:
    bench = Bench(config(prefix_cache=False))
    for _ in range(2):
        key = bench.submit(submission(range(12)))
        bench.finish()

    assert bench.outputs[key][0].cached_prompt_tokens == 0
    assert bench.scheduler.kv.pool.num_free == 32


def test_abort_frees_at_once_and_twice_is_harmless() -> None:
    bench = Bench(config())
    key = bench.submit(submission(range(10), max_tokens=20))
    bench.step()
    assert bench.num_used > 0

    assert bench.scheduler.abort(key)
    assert not bench.scheduler.abort(key)

    bench.scheduler.check()
    assert bench.num_used == 0
    assert bench.scheduler.counters.aborted == 1


def test_the_youngest_of_the_lowest_priority_gives_way() -> None:
    bench = Bench(config(num_pages=8, admission="greedy", prefix_cache=False))
    keys = [bench.submit(submission([n] * 7, max_tokens=9, priority=p)) for n, p in ((1, 0), (2, 5), (3, 0))]

    preempted: list[int] = []
    while bench.scheduler.has_work:
        preempted.extend(bench.step().preempted)

    assert preempted[0] == keys[2]
    assert keys[1] not in preempted
    assert [bench.tokens(key) for key in keys] == [answer([n] * 7, 9) for n in (1, 2, 3)]


def test_a_preempted_request_goes_on_where_it_was() -> None:
    bench = Bench(config(num_pages=6, admission="greedy"))
    keys = [bench.submit(submission([n] * 8, max_tokens=12)) for n in (1, 2)]
    bench.finish()

    assert bench.scheduler.counters.preemptions > 0
    assert [bench.tokens(key) for key in keys] == [answer([n] * 8, 12) for n in (1, 2)]
    assert bench.scheduler.counters.generated_tokens == 24


def test_higher_priority_is_admitted_first() -> None:
    bench = Bench(config(max_num_seqs=1))
    low, high = (bench.submit(submission([n], max_tokens=1, priority=p)) for n, p in ((1, 0), (2, 1)))

    decision = bench.step()

    assert [row.key for row in decision.rows] == [high]
    assert bench.step().rows[0].key == low


@pytest.mark.parametrize(
    ("prompt", "max_tokens"),
    [(range(40), 25), (range(10), 60)],
)
def test_what_exceeds_the_context_is_refused_at_submission(prompt: range, max_tokens: int) -> None:
    bench = Bench(config())

    with pytest.raises(Refused, match="the context holds 64") as refusal:
        bench.submit(submission(prompt, max_tokens=max_tokens))

    assert refusal.value.code is RefusalCode.NEVER_FITS


def test_what_exceeds_the_pool_is_refused_and_what_just_fits_runs() -> None:
    bench = Bench(config(num_pages=5))

    with pytest.raises(Refused, match="the KV pool holds 20"):
        bench.submit(submission(range(18), max_tokens=4))
    key = bench.submit(submission(range(18), max_tokens=3))
    bench.finish()

    assert bench.tokens(key) == answer(range(18), 3)


def test_a_full_queue_refuses() -> None:
    bench = Bench(config(max_waiting=2))
    for _ in range(2):
        bench.submit(submission([1]))

    with pytest.raises(Refused) as refusal:
        bench.submit(submission([1]))

    assert refusal.value.code is RefusalCode.QUEUE_FULL
    assert bench.scheduler.counters.refused == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_p", float("nan")),
        ("top_k", -1),
        ("logprobs", -1),
        ("logprobs", 101),
    ],
)
def test_a_bad_parameter_is_refused_by_name(field: str, value: float) -> None:
    params = SamplingParams(**{"max_tokens": 1, field: value})  # type: ignore[arg-type]

    with pytest.raises(Refused, match=field) as refusal:
        Bench(config()).submit(Submission((1,), params))

    assert refusal.value.code is RefusalCode.BAD_PARAMS


@pytest.mark.parametrize("prompt", [(), (VOCAB_SIZE,), (-1,)])
def test_a_bad_prompt_is_refused(prompt: tuple[int, ...]) -> None:
    with pytest.raises(Refused, match="prompt") as refusal:
        Bench(config()).submit(submission(prompt))

    assert refusal.value.code is RefusalCode.BAD_PARAMS


@pytest.mark.parametrize(
    ("changes", "token", "finish"),
    [
        ({}, EOS, FinishReason.STOP),
        ({"ignore_eos": True}, EOS, None),
        ({"stop_ids": frozenset({7})}, 7, FinishReason.STOP),
        ({"stop_ids": frozenset({7}), "ignore_eos": True}, 7, FinishReason.STOP),
        ({}, 7, None),
    ],
)
def test_a_stop_token_ends_the_request_and_is_part_of_it(
    changes: dict[str, object], token: int, finish: FinishReason | None
) -> None:
    bench = Bench(config())
    params = SamplingParams(max_tokens=5, **changes)  # type: ignore[arg-type]
    key = bench.submit(Submission((1, 2), params))
    decision = bench.scheduler.schedule()

    (output,) = bench.scheduler.apply(decision, [Sampled(key, token)])

    assert output.tokens == (token,)
    assert output.finish is finish


def test_logits_that_are_no_numbers_end_their_request_alone_and_are_not_cached() -> None:
    bench = Bench(config())
    broken, sound = (bench.submit(submission([n] * 5)) for n in (1, 2))
    decision = bench.scheduler.schedule()

    outputs = bench.scheduler.apply(decision, [Sampled(broken, None), Sampled(sound, 3)])

    assert [(output.key, output.finish) for output in outputs] == [(broken, FinishReason.ERROR), (sound, None)]
    bench.scheduler.check()
    assert bench.scheduler.kv.pool.num_cached == 1


def test_a_decision_prints_without_tokens() -> None:
    bench = Bench(config(max_batched_tokens=4))
    bench.submit(submission([5, 6, 7]))
    bench.submit(submission([8, 9]))

    assert bench.step().describe() == "step=1 rows=[1:0+3 2:0+1~] preempted=[]"


STOPS = range(3)
arrivals = st.tuples(
    st.just("submit"),
    st.integers(0, 3),  # which of a few texts it begins with
    st.integers(1, 20),
    st.integers(1, 20),
    st.sampled_from(["", "x"]),
    st.integers(0, 2),
)
events = st.lists(
    st.one_of(
        arrivals,
        arrivals,
        st.tuples(st.just("abort"), st.integers(1, 20)),
        st.tuples(st.just("preempt"), st.integers(1, 20)),
        st.tuples(st.just("wait"), st.floats(0.0, 15.0)),
        st.tuples(st.just("step")),
    ),
    min_size=12,
    max_size=60,
)
configs = st.builds(
    lambda num_slots, page_size, **rest: config(num_pages=num_slots // page_size, page_size=page_size, **rest),
    num_slots=st.integers(24, 72),
    page_size=st.sampled_from([1, 2, 4]),
    max_num_seqs=st.integers(1, 6),
    max_batched_tokens=st.integers(1, 24),
    admission=st.sampled_from(sorted(ADMISSIONS)),
    policy=st.sampled_from(sorted(POLICIES)),
    max_batch_size=st.sampled_from([None, None, 1, 2, 3]),
    num_swap_pages=st.sampled_from([0, 0, 3, 40]),
    prefix_cache=st.booleans(),
    max_overtakes=st.integers(0, 3),
    prefill_share=st.sampled_from([0.1, 0.5, 1.0]),
    chunk_share=st.sampled_from([0.1, 0.5, 1.0]),
)


def _arrive(bench: Bench, chosen: EngineConfig, prompt: list[int], arriving: Submission) -> int | None:
    """Submit what may be anything; returns its key, or `None` where it was refused as it must be."""
    if chosen.pages_for(len(prompt) + arriving.params.max_tokens - 1) <= chosen.num_pages:
        return bench.submit(arriving)
    with pytest.raises(Refused, match="the KV pool holds"):
        bench.submit(arriving)
    return None


@settings(max_examples=150, deadline=None)
@given(events=events, chosen=configs, overlap=st.booleans())
def test_whatever_arrives_all_ends_right_and_nothing_leaks(
    events: list[tuple[object, ...]], chosen: EngineConfig, overlap: bool
) -> None:
    bench, wanted, num_taken_away = Bench(chosen, overlap=overlap), dict[int, tuple[int, ...]](), 0
    for event in events:
        match event:
            case ("submit", int(text), int(length), int(max_tokens), str(salt), int(priority)):
                prompt = [(text + n) % VOCAB_SIZE for n in range(length)]
                arriving = submission(prompt, max_tokens=max_tokens, salt=salt, priority=priority, stop_ids=STOPS)
                key = _arrive(bench, chosen, prompt, arriving)
                if key is not None:
                    wanted[key] = answer(prompt, max_tokens, stop_ids=STOPS)
            case ("abort", int(key)):
                if bench.scheduler.abort(key):
                    wanted[key] = bench.tokens(key)
            case ("preempt", int(key)):
                num_taken_away += bench.scheduler.preempt(key)
            case ("wait", float(seconds)):
                bench.now_s += seconds
            case _:
                bench.step()
    bench.finish()

    assert {key: bench.tokens(key) for key in bench.outputs} == wanted
    assert bench.num_used == 0
    for decision in bench.runner.decisions:
        assert decision.num_tokens <= chosen.max_batched_tokens
        assert len(decision.rows) <= chosen.num_rows
    if chosen.admission == "reserve":
        assert bench.scheduler.counters.preemptions == num_taken_away


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20)), min_size=5, max_size=40),
    max_overtakes=st.integers(0, 4),
    policy=st.sampled_from(["fcfs", "longest_prefix"]),
)
def test_nobody_is_passed_by_more_than_the_bound(
    lengths: list[tuple[int, int]], max_overtakes: int, policy: str
) -> None:
    bench = Bench(config(num_pages=16, max_overtakes=max_overtakes, policy=policy))
    for length, max_tokens in lengths:
        bench.submit(submission(range(length), max_tokens=max_tokens))
    order = bench.admissions()

    for place, key in enumerate(order):
        assert sum(later > key for later in order[:place]) <= max_overtakes
