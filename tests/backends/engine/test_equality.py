"""The engine's greedy tokens in float32 are those of transformers on the same weights, however they are computed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from backends.engine.config import EngineConfig
from backends.engine.model.loader import LoadedModel
from backends.engine.runner.runner import Runner
from backends.engine.sched.queue import POLICIES
from backends.engine.sched.scheduler import Scheduler
from backends.engine.types import SamplingParams, Submission

GreedyCheck = Callable[[Sequence[int], Sequence[int]], None]

NUM_TOKENS = 16
ON_KERNELS = pytest.mark.parametrize("on_kernels", [True, False], ids=["kernels", "reference"])
pytestmark = pytest.mark.usefixtures("kernels")


def _settings(model: LoadedModel, **changes: object) -> EngineConfig:
    values: dict[str, object] = {
        "vocab_size": model.shape.vocab_size,
        "max_len": model.shape.max_len,
        "eos_ids": model.shape.eos_ids,
        "num_pages": 2048,
        "page_size": 16,
        "max_num_seqs": 64,
        "max_batched_tokens": 128,
        **changes,
    }
    return EngineConfig(**values)  # type: ignore[arg-type]


class _Engine:
    """A scheduler over a real model, its books checked after every step."""

    def __init__(self, model: LoadedModel, settings: EngineConfig, *, kernels: bool = True) -> None:
        self.scheduler = Scheduler(settings)
        self._runner = Runner(model, num_pages=settings.num_pages, page_size=settings.page_size, kernels=kernels)
        self._num_submitted = 0

    def answer(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams | None = None,
        *,
        num_preempted: int = 0,
    ) -> list[tuple[int, ...]]:
        """Return the answers; after every step so many of the running lose their pages."""
        params = params or SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
        answers: dict[int, tuple[int, ...]] = {}
        for prompt in prompts:
            self._num_submitted += 1
            self.scheduler.submit(self._num_submitted, Submission(tuple(prompt), params), seed=params.seed or 0)
            answers[self._num_submitted] = ()
        while self.scheduler.has_work:
            decision = self.scheduler.schedule()
            for output in self.scheduler.apply(decision, self._runner.run(decision)):
                answers[output.key] += output.tokens
            for row in decision.rows[:num_preempted]:
                self.scheduler.preempt(row.key)
            self.scheduler.check()
        return list(answers.values())


def _tiny_prompts() -> list[list[int]]:
    draw = random.Random(5)
    prompts = [[draw.randrange(97) for _ in range(length)] for length in (1, 2, 15, 16, 17, 31, 32, 33, 48, 60)]
    return [*prompts, prompts[-1][:40] + prompts[2], prompts[-1][:32]]  # two that share what came before


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize(
    ("on_kernels", "budget"),
    [(True, 1), (True, 7), (True, 64), pytest.param(False, 1, marks=pytest.mark.long), (False, 7), (False, 64)],
)
@pytest.mark.parametrize("page_size", [1, 16])
def test_every_way_of_batching_gives_the_same_tokens(
    tiny_model: LoadedModel,
    tiny_greedy: GreedyCheck,
    page_size: int,
    budget: int,
    prefix_cache: bool,
    on_kernels: bool,
) -> None:
    prompts = _tiny_prompts()
    settings = _settings(
        tiny_model,
        page_size=page_size,
        num_pages=2048 // page_size,
        max_num_seqs=min(budget, 8),
        max_batched_tokens=budget,
        prefix_cache=prefix_cache,
    )
    engine = _Engine(tiny_model, settings, kernels=on_kernels)

    first = engine.answer(prompts)
    again = engine.answer(prompts)

    assert again == first
    assert (engine.scheduler.counters.prefix_hit_tokens > 0) == prefix_cache
    for prompt, answer in zip(prompts, first, strict=True):
        tiny_greedy(prompt, answer)


@pytest.mark.parametrize("page_size", [1, 16])
@ON_KERNELS
def test_preemption_changes_no_token(
    tiny_model: LoadedModel, tiny_greedy: GreedyCheck, page_size: int, on_kernels: bool
) -> None:
    prompts = _tiny_prompts()
    settings = _settings(tiny_model, page_size=page_size, num_pages=128 // page_size, admission="greedy")
    engine = _Engine(tiny_model, settings, kernels=on_kernels)

    answers = engine.answer(prompts)

    assert engine.scheduler.counters.preemptions > 0
    for prompt, answer in zip(prompts, answers, strict=True):
        tiny_greedy(prompt, answer)


@pytest.mark.parametrize(
    ("num_preempted", "prefix_cache"), [(1, True), (64, True), pytest.param(64, False, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("page_size", [1, 16])
def test_preemption_at_every_step_changes_no_token(
    tiny_model: LoadedModel, tiny_greedy: GreedyCheck, page_size: int, num_preempted: int, prefix_cache: bool
) -> None:
    prompts = _tiny_prompts()
    settings = _settings(tiny_model, page_size=page_size, num_pages=2048 // page_size, prefix_cache=prefix_cache)
    # Without the cache all is computed anew, so a step must have room for every request's every token.
    engine = _Engine(tiny_model, replace(settings, max_batched_tokens=1024))
    params = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)

    answers = engine.answer(prompts, params, num_preempted=num_preempted)

    assert engine.scheduler.counters.preemptions >= engine.scheduler.counters.steps - 1
    for prompt, answer in zip(prompts, answers, strict=True):
        tiny_greedy(prompt, answer)


@pytest.mark.parametrize(
    "policy", [policy if policy == "fcfs" else pytest.param(policy, marks=pytest.mark.long) for policy in POLICIES]
)
def test_seeded_answers_depend_on_no_neighbour_no_order_and_no_preemption(tiny_model: LoadedModel, policy: str) -> None:
    params = SamplingParams(max_tokens=5, temperature=1.0, top_p=0.95, seed=11, ignore_eos=True)
    prompts = _tiny_prompts()

    def answers(order: Sequence[int], *, num_preempted: int = 0, **changes: object) -> list[tuple[int, ...]]:
        engine = _Engine(tiny_model, _settings(tiny_model, policy=policy, **changes))
        given = engine.answer([prompts[index] for index in order], params, num_preempted=num_preempted)
        return [answer for _, answer in sorted(zip(order, given, strict=True))]

    forward = list(range(len(prompts)))
    reference = answers(forward)

    assert answers(forward[::-1]) == reference
    assert answers(forward, num_preempted=64, max_batched_tokens=1024) == reference
    assert answers(forward, max_num_seqs=3, page_size=1, chunk_share=0.1, prefill_share=0.1) == reference
    assert answers(forward, num_pages=8, admission="greedy") == reference
    assert [answers([index])[0] for index in forward[:3]] == reference[:3]


@ON_KERNELS
def test_a_seeded_answer_does_not_depend_on_its_neighbours(tiny_model: LoadedModel, on_kernels: bool) -> None:
    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=1.0, top_p=0.95, seed=3, ignore_eos=True)
    prompts = _tiny_prompts()[:4]

    def engine() -> _Engine:
        return _Engine(tiny_model, _settings(tiny_model), kernels=on_kernels)

    together = engine().answer(prompts, params)
    alone = [engine().answer([prompt], params)[0] for prompt in prompts]

    assert alone == together


def test_logprobs_come_with_the_tokens(tiny_model: LoadedModel) -> None:
    settings = _settings(tiny_model)
    scheduler = Scheduler(settings)
    runner = Runner(tiny_model, num_pages=settings.num_pages, page_size=settings.page_size)
    scheduler.submit(1, Submission((4, 5), SamplingParams(max_tokens=1, temperature=0.0, logprobs=3)), seed=0)
    decision = scheduler.schedule()

    (output,) = scheduler.apply(decision, runner.run(decision))

    assert output.logprobs is not None
    (logprobs,) = output.logprobs
    assert len(logprobs.top) == 3
    assert logprobs.top[0] == (output.tokens[0], logprobs.logprob)
    assert [value for _, value in logprobs.top] == sorted((value for _, value in logprobs.top), reverse=True)


PROMPTS = [row["ids"] for row in json.loads((Path(__file__).parent / "prompts.json").read_text())]


@pytest.mark.parametrize(
    ("page_size", "prefix_cache", "on_kernels"), [(16, True, True), (1, False, True), (16, True, False)]
)
def test_the_built_in_model_answers_20_prompts_as_transformers(
    smollm: LoadedModel, smollm_greedy: GreedyCheck, page_size: int, prefix_cache: bool, on_kernels: bool
) -> None:
    assert len(PROMPTS) == 20
    settings = _settings(smollm, page_size=page_size, num_pages=4096 // page_size, prefix_cache=prefix_cache)
    engine = _Engine(smollm, settings, kernels=on_kernels)
    brief = SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True)

    batched = engine.answer(PROMPTS)
    alone = [engine.answer([prompt], brief)[0] for prompt in PROMPTS]

    assert (engine.scheduler.counters.prefix_hit_tokens > 0) == prefix_cache
    assert alone == [answer[:3] for answer in batched]
    for prompt, answer in zip(PROMPTS, batched, strict=True):
        smollm_greedy(prompt, answer)


@pytest.mark.long
@pytest.mark.timeout(1800)  # plain torch takes minutes where others want the same cores
@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("page_size", [1, 16])
@ON_KERNELS
def test_the_built_in_model_answers_alike_alone_batched_and_from_the_cache(
    smollm: LoadedModel, smollm_greedy: GreedyCheck, page_size: int, prefix_cache: bool, on_kernels: bool
) -> None:
    settings = _settings(smollm, page_size=page_size, num_pages=4096 // page_size, prefix_cache=prefix_cache)
    engine = _Engine(smollm, settings, kernels=on_kernels)

    batched = engine.answer(PROMPTS)

    assert engine.answer(PROMPTS) == batched
    assert [engine.answer([prompt])[0] for prompt in PROMPTS] == batched
    for prompt, answer in zip(PROMPTS, batched, strict=True):
        smollm_greedy(prompt, answer)
